"""Bytes on their way: `transfer` which object when, `carry` one object, `schemas` those that records name."""
