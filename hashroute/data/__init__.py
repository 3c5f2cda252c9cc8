"""Image data sets: find their files, download what is missing, read and check them."""

from hashroute.data.files import DATASETS, Status, check_name, data_folder, dataset_status, load_dataset
from hashroute.data.readers import Dataset

__all__ = ["DATASETS", "Dataset", "Status", "check_name", "data_folder", "dataset_status", "load_dataset"]
