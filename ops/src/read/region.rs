//! Reads RoiAlign-22 and MaxRoiPool-22: image regions divided into bins.

use super::{expect_output, extents};
use devbay_plugin_api::sdk::{Error, PrepareRequest, Result};

/// Images, their regions, and the bins of each region.
#[derive(Clone, PartialEq, Debug)]
pub struct Regions {
    /// Extents of the images: batch, channels, height, width.
    pub images: [i64; 4],
    /// Number of regions.
    pub n: i64,
    /// Bins of a region: rows and columns.
    pub bins: [i64; 2],
    /// Scale from a region's corner coordinates to elements of the image.
    pub scale: f32,
}

impl Regions {
    /// Reads a RoiAlign node: regions of four numbers each, with their images in an operand.
    ///
    /// # Errors
    /// Invalid for shapes and attributes that break the specification.
    pub fn of_roi_align<D>(request: &PrepareRequest<'_, D>) -> Result<Self> {
        let bins = [request.attrs.int("output_height", 1)?, request.attrs.int("output_width", 1)?];
        let found = Self::of(request, 4, bins)?;
        let images = extents(request.required_input(2)?)?;
        if images != [found.n] {
            return Err(Error::invalid(format!("{} regions with batch indices of {images:?}", found.n)));
        }
        Ok(found)
    }

    /// Reads a MaxRoiPool node: regions of five numbers each, the first being the image's number.
    ///
    /// # Errors
    /// As [`Regions::of_roi_align`].
    pub fn of_max_roi_pool<D>(request: &PrepareRequest<'_, D>) -> Result<Self> {
        let bins = request.attrs.ints("pooled_shape")?.unwrap_or_default();
        let bins = <[i64; 2]>::try_from(bins)
            .map_err(|bins| Error::invalid(format!("a pooled_shape of {bins:?}, expected two numbers")))?;
        Self::of(request, 5, bins)
    }

    fn of<D>(request: &PrepareRequest<'_, D>, numbers: i64, bins: [i64; 2]) -> Result<Self> {
        let found = extents(request.required_input(0)?)?;
        let images = <[i64; 4]>::try_from(found)
            .map_err(|_| Error::invalid(format!("images of {found:?}, expected four extents")))?;
        let n = match extents(request.required_input(1)?)? {
            &[n, found] if found == numbers => n,
            found => {
                return Err(Error::invalid(format!("regions of {found:?}, expected {numbers} numbers each")));
            }
        };
        if bins.iter().any(|&bins| bins < 0) {
            return Err(Error::invalid(format!("{bins:?} bins, expected at least 0")));
        }
        expect_output(request, 0, &[n, images[1], bins[0], bins[1]])?;
        if n > 0 && images[2..].contains(&0) {
            return Err(Error::invalid(format!("regions of images of {images:?}, which have no elements")));
        }
        Ok(Self { images, n, bins, scale: request.attrs.float("spatial_scale", 1.0)? })
    }
}
