#pragma once
#include <pybind11/pybind11.h>

/// Adds what horoacc.schedule formats: proofs and predictions.
void DefineSchedules(pybind11::module_& module);
