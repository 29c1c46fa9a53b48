//! Kernels of ai.onnx.ml: forests of decision trees, support vectors, and tables of labels.
//!
//! Semantics are those of ONNX's text and, where it is silent, of onnxruntime 1.32 (docs/ml-ops.md). Labels are integers:
//! texts are values of the host.

mod attributes;
mod classes;
mod described;
mod forest;
mod lookup;
mod post;
mod svm;
mod trees;
#[cfg(test)]
mod trees_tests;

pub use lookup::KERNELS as LOOKUP_KERNELS;
pub use svm::KERNELS as SVM_KERNELS;
pub use trees::KERNELS as TREE_KERNELS;

use crate::device::CpuDevice;
use crate::kernels::geometry::extents::extents;
use devbay_plugin_api::sdk::{Error, PrepareRequest, Result};

/// Returns the number of rows of features, and of features in a row. A single row may have one dimension.
///
/// # Errors
/// Invalid for other numbers of dimensions.
fn rows_of(request: &PrepareRequest<'_, CpuDevice>) -> Result<[usize; 2]> {
    match extents(request.required_input(0)?)?[..] {
        [width] => Ok([1, width]),
        [rows, width] => Ok([rows, width]),
        ref found => Err(Error::invalid(format!("features of {found:?}, expected 1 or 2 dimensions"))),
    }
}
