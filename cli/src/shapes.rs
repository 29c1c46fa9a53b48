//! Options for inputs of changing extents: the number of plans to keep, and padding.

use crate::exit::usage;
use anyhow::Result;
use clap::Args;
use devbay_host::internals::compare::Tolerance;
use devbay_host::{BucketOptions, SessionOptions};

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

/// Tolerance between results of padded and unpadded inputs: their sums have a different order.
const TOLERANCE: Tolerance = Tolerance { relative: 1e-4, absolute: 1e-5 };

impl ShapeArguments {
    /// Applies the given options.
    ///
    /// # Errors
    /// For invalid sizes and values.
    pub fn apply(&self, options: &mut SessionOptions) -> Result<()> {
        if let Some(plans_max) = self.plans_max {
            options.plans.plans_max = plans_max as usize;
        }
        if self.bucket.is_empty() {
            return Ok(());
        }
        let mut buckets =
            BucketOptions { check: self.check_buckets.then_some(TOLERANCE), ..BucketOptions::default() };
        for text in &self.bucket {
            let (name, sizes) = text
                .rsplit_once('=')
                .ok_or_else(|| usage(format!("--bucket is NAME=SIZES, found {text}")))?;
            buckets.sizes.push((name.to_owned(), sizes.parse()?));
        }
        for text in &self.pad {
            let parsed = text.rsplit_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
            let (name, value): (&str, f64) =
                parsed.ok_or_else(|| usage(format!("--pad is INPUT=VALUE, found {text}")))?;
            buckets.padding.push((name.to_owned(), value));
        }
        options.buckets = Some(buckets);
        Ok(())
    }
}
