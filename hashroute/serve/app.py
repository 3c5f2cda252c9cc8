"""The application: routes for predict, learn, forget and undo, and the page."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio
import numpy as np
from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from numpy.typing import NDArray
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException

import hashroute
from hashroute.model.answers import Answer
from hashroute.model.model import Model
from hashroute.model.names import NAME
from hashroute.model.records import SMALL
from hashroute.reporting.decisions import describe
from hashroute.serve.guard import Guard
from hashroute.serve.jobs import Job, Jobs
from hashroute.serve.lesson import Order
from hashroute.serve.limits import Limits
from hashroute.serve.uploads import Form, check_name, read_form, read_image, upload_folder

PAGE = Path(__file__).with_name("page.html")
CHECKED_SIZE = 8
"""Images that are to be learned are decoded once to this side, to see whether they can be read."""
MOST_TOP = 100
MOST_EPOCHS = 1000

Result = TypeVar("Result")


class Problem(BaseModel):
    """Why a request was refused."""

    error: str


class Health(BaseModel):
    """That the server works."""

    status: str = "ok"
    version: str = hashroute.__version__


class PossibleAnswer(BaseModel):
    """A class that an image may belong to."""

    class_name: str
    task: str
    probability: float


class ImageAnswer(PossibleAnswer):
    """The answer to one image."""

    image: str
    familiar: bool
    """False if the image is unlike anything known."""
    top: list[PossibleAnswer]


class Answers(BaseModel):
    """The answers to images, in their order."""

    answers: list[ImageAnswer]


class TaskFacts(BaseModel):
    """A task that was learned."""

    name: str
    classes: list[str]
    images: int
    accuracy: float | None
    learned: datetime
    private: bool
    bytes: int
    parent: str | None
    decision: str | None


class Tasks(BaseModel):
    """What a model has learned."""

    tasks: list[TaskFacts]
    unfinished: int
    """Tasks that were interrupted: the same images continue each."""
    last_change: str | None
    """What `undo` would take back."""


class Changed(BaseModel):
    """What was changed."""

    done: str
    tasks: list[str] = []
    """After forget: tasks whose units descend from the forgotten one, and keep some of what it learned."""


class Room:
    """What the routes share: the model, its jobs and its limits."""

    def __init__(self, path: Path, limits: Limits, device: str, backbone: str) -> None:
        self.model = Model(path, backbone=backbone, device=device)
        self.limits = limits
        self.jobs = Jobs(limits)
        self.uploads = anyio.CapacityLimiter(limits.uploads)
        self.computing = anyio.CapacityLimiter(1)
        self.closing: Callable[[], bool] = lambda: False
        """Whether the server is about to end: events end then, too."""

    async def compute(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do one thing at a time with the model, in a thread. What it does not accept is a client's mistake."""
        try:
            return await anyio.to_thread.run_sync(work, *arguments, limiter=self.computing)
        except ValueError as error:
            line = " ".join(str(error).replace(str(self.model.path), "the model").split())
            raise HTTPException(409, line) from None
        except OSError as error:
            raise HTTPException(500, f"the folder of the model cannot be used: {error.strerror}") from error

    @asynccontextmanager
    async def uploading(self) -> AsyncIterator[None]:
        """A place for one more upload; refused if all are taken."""
        try:
            self.uploads.acquire_on_behalf_of_nowait(token := object())
        except anyio.WouldBlock:
            line = f"{self.limits.uploads} uploads arrive already: try again later"
            raise HTTPException(429, line) from None
        try:
            yield
        finally:
            self.uploads.release_on_behalf_of(token)

    def check_task(self, task: str) -> None:
        """Refuse a task that the model does not have."""
        known = self.model.store.read().tasks
        if task not in known:
            expected = ", ".join(known) or "none, because nothing was learned yet"
            raise HTTPException(404, f"there is no task {task[:40]!r}: expected {expected}")

    def predict(self, form: Form, task: str | None, top: int) -> list[ImageAnswer]:
        """Answer images."""
        if task is not None:
            self.check_task(task)
        channels, size, _ = self.model.image_shape
        if channels not in (1, 3):
            raise HTTPException(409, f"the model takes images of {channels} channels: ask it from Python")
        found = self.model.predict(np.stack(list(self._pixels(form, size, channels == 3))), task, top)
        return [_plain(each.name, answer) for each, answer in zip(form.images, found, strict=True)]

    def check_images(self, form: Form) -> None:
        """Refuse images that cannot be read before a job starts."""
        if len(form.classes) != len(form.images):
            counts = f"{len(form.images)} images and {len(form.classes)} classes"
            raise HTTPException(400, f"there are {counts}: expected one part named classes for each image")
        for _ in self._pixels(form, CHECKED_SIZE, True):
            pass

    def _pixels(self, form: Form, size: int, colour: bool) -> Iterator[NDArray[np.uint8]]:
        """Decode images one at a time."""
        start = time.monotonic()
        for each in form.images:
            if time.monotonic() - start > self.limits.decode_seconds:
                allowed = f"{self.limits.decode_seconds:g} seconds"
                raise HTTPException(413, f"the images take longer than {allowed} to decode: send fewer at once")
            yield read_image(each, size, colour, self.limits)

    def tasks(self) -> Tasks:
        """All tasks."""
        found = []
        for each in self.model.tasks():
            decision = describe(each.decision) if each.decision.get("action") else None
            found.append(TaskFacts(**{**each._asdict(), "classes": list(each.classes), "decision": decision}))
        history = self.model.store.read().history
        last = f"{history[-1].action} {history[-1].task}" if history else None
        return Tasks(tasks=found, unfinished=self.model.unfinished(), last_change=last)

    def forget(self, task: str) -> Changed:
        """Forget a task."""
        self.check_task(task)
        return Changed(done=f"{task} is forgotten", tasks=self.model.forget(task))


def _plain(name: str, answer: Answer) -> ImageAnswer:
    top = [PossibleAnswer(**each._asdict()) for each in answer.top]
    return ImageAnswer(image=name, familiar=answer.familiar, top=top, **answer.top[0]._asdict())


def check_header(
    x_hashroute: Annotated[
        str | None, Header(description="Any value. Pages of other sites cannot send it, so they cannot change a model.")
    ] = None,
) -> None:
    """Refuse a change that another site may have sent."""
    if not x_hashroute:
        raise HTTPException(403, "a change needs a header that other sites cannot send: add X-Hashroute: 1")


CHANGES = [Depends(check_header)]
TaskName = Annotated[
    str, Query(min_length=1, max_length=200, description="Name of the task.", json_schema_extra={"pattern": NAME})
]


def _multipart(*required: str) -> dict[str, Any]:
    """The description of a body with images."""
    parts = {
        "images": {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}},
        "classes": {"type": "array", "minItems": 1, "items": {"type": "string", "maxLength": 200, "pattern": NAME}},
    }
    chosen = {name: parts[name] for name in required}
    schema = {"type": "object", "required": list(required), "properties": chosen, "additionalProperties": False}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def create_app(
    model_path: str | Path,
    token: str | None = None,
    limits: Limits | None = None,
    device: str = "cpu",
    backbone: str = SMALL,
) -> FastAPI:
    """The application for one model.

    Args:
        model_path: folder of the model; the first lesson makes it.
        token: clients must send it. Without one, only this computer is answered.
        limits: what is accepted.
        device: to compute on.
        backbone: the encoder of a new model, by name, or the code of yours that an existing model needs.
    """
    limits = limits or Limits()
    room = Room(Path(model_path).absolute(), limits, device, backbone)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await room.jobs.stop()

    app = FastAPI(
        title="hashroute",
        version=hashroute.__version__,
        summary="A model that learns task after task",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        responses={"4XX": {"model": Problem, "description": "The request was refused: one line says why."}},
    )
    app.state.room = room
    app.add_middleware(Guard, token=token)
    Guard(app, token)  # a token that is too short is an error now, not at the first request
    page, policy = _page()

    @app.get("/", include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    @app.get("/health")
    async def health() -> Health:
        """Whether the server works."""
        return Health()

    @app.get("/tasks")
    async def tasks() -> Tasks:
        """What the model has learned."""
        return await room.compute(room.tasks)

    @app.post("/predict", openapi_extra=_multipart("images"))
    async def predict(
        request: Request,
        task: Annotated[TaskName | None, Query()] = None,
        top: Annotated[int, Query(ge=1, le=MOST_TOP, description="Possible answers for each image.")] = 1,
    ) -> Answers:
        """The class of each image, with a calibrated probability."""
        async with room.uploading():
            with upload_folder() as folder:
                form = await read_form(request, folder, limits)
                return Answers(answers=await room.compute(room.predict, form, task, top))

    @app.post("/learn", status_code=202, dependencies=CHANGES, openapi_extra=_multipart("images", "classes"))
    async def learn(
        request: Request,
        task: TaskName,
        private: bool = False,
        epochs: Annotated[int | None, Query(ge=1, le=MOST_EPOCHS, description="Passes over the images.")] = None,
    ) -> Job:
        """Learn a task, or more of a task that exists, in the background."""
        check_name("the task", task, limits)
        room.jobs.check_free()
        async with room.uploading():
            with ExitStack() as stack:
                folder = stack.enter_context(upload_folder())
                form = await read_form(request, folder, limits)
                await room.compute(room.check_images, form)
                files = [str(each.path) for each in form.images]
                order = Order(
                    str(room.model.path), backbone, device, task, files, form.classes, private, epochs, str(folder)
                )
                room.jobs.check_free()
                return room.jobs.start(order, stack.pop_all())

    @app.get("/jobs/{job_id}")
    async def job(job_id: str) -> Job:
        """How far a job is."""
        return room.jobs.find(job_id)

    @app.get("/jobs/{job_id}/events", response_class=StreamingResponse)
    async def events(job_id: str) -> StreamingResponse:
        """The states of a job as server-sent events; the last one is its end."""
        found = room.jobs.follow(room.jobs.find(job_id), lambda: room.closing())
        return StreamingResponse(found, media_type="text/event-stream")

    @app.post("/forget", dependencies=CHANGES)
    async def forget(task: TaskName) -> Changed:
        """Remove a task for good. `undo` does not bring it back."""
        room.jobs.check_free()
        return await room.compute(room.forget, task)

    @app.post("/undo", dependencies=CHANGES)
    async def undo() -> Changed:
        """Take back the last change."""
        room.jobs.check_free()
        return Changed(done=await room.compute(room.model.undo))

    @app.exception_handler(StarletteHTTPException)
    async def refused(_: Request, error: StarletteHTTPException) -> JSONResponse:
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def wrong(_: Request, error: RequestValidationError) -> JSONResponse:
        lines = [f"{each['loc'][-1]}: {each['msg']}" for each in error.errors()]
        return JSONResponse({"error": "; ".join(lines)[:500]}, 422)

    @app.exception_handler(Exception)
    async def failed(_: Request, __: Exception) -> JSONResponse:
        return JSONResponse({"error": "the server made a mistake: its log says which"}, 500)

    return app


def _page() -> tuple[str, str]:
    """The page, and a policy that runs its own script and style and nothing else."""
    text = PAGE.read_text()

    def digest(tag: str) -> str:
        found = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert found is not None, f"the page has a {tag}"
        return base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()

    policy = (
        f"default-src 'none'; script-src 'sha256-{digest('script')}'; style-src 'sha256-{digest('style')}'; "
        "img-src blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy
