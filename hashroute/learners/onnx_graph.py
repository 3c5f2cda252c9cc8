"""Building an ONNX file from traced modules.

A module is traced once for each structure. Other modules of the same structure, such as the paths and heads of later
tasks, are copies of its nodes with other weights, so that a hundred tasks take little longer than one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Nodes = list[Any]
Branch = tuple[Nodes, list[str]]
"""Nodes, and the names of their outputs."""


class Graph:
    """A graph under construction. Values are known by their names; equal constants are stored once."""

    def __init__(self) -> None:
        self.nodes: Nodes = []
        self.constants: dict[str, Any] = {}
        self.functions: dict[tuple[str, str], Any] = {}
        self.versions: dict[str, int] = {}
        self.ir_version = 0
        self._traced: dict[Any, Any] = {}
        self._count = 0

    def constant(self, value: Any) -> str:
        """The name of a constant."""
        import onnx

        array = np.ascontiguousarray(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
        described = f"{array.dtype} {array.shape} ".encode()
        name = "constant_" + hashlib.sha256(described + array.tobytes()).hexdigest()[:24]
        if name not in self.constants:
            self.constants[name] = onnx.numpy_helper.from_array(array, name)
        return name

    def operation(self, nodes: Nodes, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add one operation to `nodes`; returns the name of its output."""
        import onnx

        name = self._new_name(kind)
        nodes.append(onnx.helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    def module(self, nodes: Nodes, module: nn.Module, inputs: dict[str, Tensor], outputs: int) -> list[str]:
        """Add what a module computes to `nodes`; returns the names of its outputs.

        inputs: the names of values, each with an example. The first dimension of an example is the batch.
        """
        weights = module.state_dict(keep_vars=False)
        shapes = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items())
        examples = tuple((tuple(each.shape), each.dtype) for each in inputs.values())
        key = (type(module), repr(module), shapes, examples)
        if key not in self._traced:
            self._traced[key] = trace(module, list(inputs.values()), outputs)
        return self._add(nodes, self._traced[key], list(inputs), weights)

    def _add(self, nodes: Nodes, model: Any, inputs: Sequence[str], weights: dict[str, Tensor]) -> list[str]:
        import onnx

        graph, prefix = model.graph, self._new_name("module")
        self.ir_version = max(self.ir_version, model.ir_version)
        self.versions |= {each.domain: each.version for each in model.opset_import}
        self.functions |= {(each.domain, each.name): each for each in model.functions}
        names = dict(zip((each.name for each in graph.input), inputs, strict=True))
        for tensor in graph.initializer:  # weights have the names that they have in the module
            value = weights.get(tensor.name)
            names[tensor.name] = self.constant(onnx.numpy_helper.to_array(tensor) if value is None else value)
        for node in graph.node:
            if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
                raise ValueError("it has a branch that depends on data")
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            del copy.metadata_props[:]
            copy.name, copy.doc_string = f"{prefix}.{node.name}", ""
            for name in node.output:
                names[name] = f"{prefix}.{name}" if name else ""
            copy.input[:] = [names[name] if name else "" for name in node.input]
            copy.output[:] = [names[name] for name in node.output]
            nodes.append(copy)
        return [names[each.name] for each in graph.output]

    def branch(self, nodes: Nodes, condition: str, then: Branch, other: Branch) -> list[str]:
        """Add a choice between two branches; returns the names of the outputs of the chosen one."""
        import onnx

        graphs = []
        for inner, results in (then, other):
            values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in results]
            graphs.append(onnx.helper.make_graph(inner, self._new_name("branch"), [], values))
        names = [self._new_name("chosen") for _ in then[1]]
        node = onnx.helper.make_node("If", [condition], names, names[0], then_branch=graphs[0], else_branch=graphs[1])
        nodes.append(node)
        return names

    def build(self, inputs: Sequence[Any], outputs: Sequence[Any], properties: dict[str, str]) -> Any:
        """The checked model. inputs, outputs: descriptions of values that the nodes use and give."""
        import onnx

        graph = onnx.helper.make_graph(self.nodes, "hashroute", inputs, outputs, list(self.constants.values()))
        versions = [onnx.helper.make_opsetid(domain, version) for domain, version in self.versions.items()]
        functions = list(self.functions.values())
        model = onnx.helper.make_model(graph, opset_imports=versions, functions=functions, producer_name="hashroute")
        model.ir_version = self.ir_version
        onnx.helper.set_model_props(model, properties)
        onnx.checker.check_model(model)
        return model

    def _new_name(self, kind: str) -> str:
        self._count += 1
        return f"{kind.lower()}_{self._count}"


def trace(module: nn.Module, examples: Sequence[Tensor], outputs: int) -> Any:
    """A module as an ONNX model whose weights keep their names; the first dimension of everything is free."""
    free = torch.export.Dim("n")
    names = [f"output_{index}" for index in range(outputs)]
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            module.eval(),
            tuple(examples),
            input_names=[f"input_{index}" for index in range(len(examples))],
            output_names=names,
            dynamic_shapes=tuple({0: free} if each.dim() else None for each in examples),
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the notes of torch's exporter off the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
