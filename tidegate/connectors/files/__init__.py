"""Files on local disks and object stores, as source and as sink."""
