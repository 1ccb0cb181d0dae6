"""The record store: measured records of many logs and platforms as Parquet."""
