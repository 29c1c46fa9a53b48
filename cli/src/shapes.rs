//! Options for inputs of changing extents: the number of plans to keep, and padding.

use anyhow::Result;
use clap::Args;
use devbay_host::SessionOptions;
use devbay_host::internals::options;

/// Plans for changing extents.
#[derive(Args, Clone)]
pub struct ShapeArguments {
    /// Number of plans to keep, one per set of input shapes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    plans_max: Option<u32>,
    /// Pad a named dimension of the inputs to the next of these sizes, and crop the results: NAME=8,16,32, or NAME=*8 for
    /// multiples. Only valid if padding does not affect other positions; --check-buckets checks that
    #[arg(long, value_name = "NAME=SIZES")]
    bucket: Vec<String>,
    /// Padding value of an input; 0 by default
    #[arg(long, value_name = "INPUT=VALUE", requires = "bucket")]
    pad: Vec<String>,
    /// Repeat the first run at each size without padding, and fail if results differ
    #[arg(long, requires = "bucket")]
    check_buckets: bool,
}

impl ShapeArguments {
    /// Applies the given options.
    ///
    /// # Errors
    /// For invalid sizes and values.
    pub fn apply(&self, session: &mut SessionOptions) -> Result<()> {
        if let Some(plans_max) = self.plans_max {
            session.plans.plans_max = plans_max as usize;
        }
        let (sizes, padding) = (self.bucket.iter().map(String::as_str), self.pad.iter().map(String::as_str));
        session.buckets = options::buckets(sizes, padding, self.check_buckets)?;
        Ok(())
    }
}
