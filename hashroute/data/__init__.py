"""Image data sets: find their files, download what is missing, read and check them."""

from hashroute.data.files import data_folder
from hashroute.data.readers import Dataset
from hashroute.data.sets import (
    DATASETS,
    DatasetSpec,
    Status,
    check_name,
    dataset_status,
    differing_files,
    load_dataset,
)

__all__ = [
    "DATASETS",
    "Dataset",
    "DatasetSpec",
    "Status",
    "check_name",
    "data_folder",
    "dataset_status",
    "differing_files",
    "load_dataset",
]
