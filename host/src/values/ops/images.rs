//! ImageDecoder: BMP, JPEG, PNG, PNM, TIFF and WebP, by the crate `image`.

use super::{Site, Work, invalid, take, wrong};
use crate::values::{Element, ValueType};
use devbay_core::tensor::{Dim, U8};
use devbay_core::{Error, ErrorKind, Result, Tensor};
use image::{DynamicImage, ImageReader, Limits};
use std::io::Cursor;

/// Maximum memory of a decoded image in bytes.
const IMAGE_SIZE_MAX: u64 = 1 << 30;

/// Order of a pixel's values.
#[derive(Clone, Copy)]
enum Pixels {
    Rgb,
    Bgr,
    Grey,
}

fn pixels(site: &Site<'_>) -> Result<Pixels> {
    Ok(match site.attrs.text("pixel_format")?.map_or("RGB", |format| &**format) {
        "RGB" => Pixels::Rgb,
        "BGR" => Pixels::Bgr,
        "Grayscale" => Pixels::Grey,
        other => {
            return Err(invalid(format!("expected RGB, BGR or Grayscale as pixel_format, found {other:?}")));
        }
    })
}

/// Bytes, `[height, width, values]`.
pub fn result(site: &Site<'_>) -> Result<Vec<ValueType>> {
    let n = if matches!(pixels(site)?, Pixels::Grey) { 1 } else { 3 };
    let shape = vec![Dim::unknown(), Dim::unknown(), Dim::Known(n)];
    Ok(vec![ValueType::Tensor { element: Some(Element::Number(U8)), shape: Some(shape) }])
}

/// ImageDecoder. Bytes that are not an image are an error; ONNX allows an empty result, which hides the fault.
pub fn decoder(site: &Site<'_>) -> Result<Work> {
    let pixels = pixels(site)?;
    Ok(Box::new(move |mut operands| {
        let stream = take(&mut operands, 0)?.into_tensor()?;
        if stream.dtype() != U8 {
            return Err(wrong(format!("expected an image's bytes as u8[n], found {}", stream.tensor_type())));
        }
        let image = decoded(stream.bytes())?;
        let (height, width) = (image.height() as usize, image.width() as usize);
        let tensor = match pixels {
            Pixels::Rgb => Tensor::from_bytes(U8, &[height, width, 3], image.into_rgb8().as_raw()),
            Pixels::Bgr => {
                let mut bytes = image.into_rgb8().into_raw();
                bytes.chunks_exact_mut(3).for_each(|pixel| pixel.swap(0, 2));
                Tensor::from_bytes(U8, &[height, width, 3], &bytes)
            }
            Pixels::Grey => Tensor::from_bytes(U8, &[height, width, 1], &grey(image)),
        };
        Ok(vec![tensor?.into()])
    }))
}

/// Returns the brightness of each pixel: the image's own, or by the weights of ITU-R BT.601, as Pillow and OpenCV do. The
/// crate's are those of BT.709.
fn grey(image: DynamicImage) -> Vec<u8> {
    if !image.color().has_color() {
        return image.into_luma8().into_raw();
    }
    let rgb = image.into_rgb8();
    // Weights of 16 bits, which add up to 1, and a half to round.
    let brightness = |pixel: &[u8]| {
        let [red, green, blue] = [pixel[0], pixel[1], pixel[2]].map(u32::from);
        ((red * 19_595 + green * 38_470 + blue * 7_471 + (1 << 15)) >> 16) as u8
    };
    rgb.as_raw().chunks_exact(3).map(brightness).collect()
}

/// First bytes of JPEG 2000: a file, and a bare code stream.
const JPEG_2000: [&[u8]; 2] = [b"\x00\x00\x00\x0cjP  ", b"\xff\x4f\xff\x51"];

fn decoded(bytes: &[u8]) -> Result<DynamicImage> {
    if JPEG_2000.iter().any(|begin| bytes.starts_with(begin)) {
        return Err(Error::new(
            ErrorKind::UnsupportedModel,
            "images in JPEG 2000 are not supported: convert them to PNG",
        ));
    }
    let read = || {
        let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?;
        let mut limits = Limits::default();
        limits.max_alloc = Some(IMAGE_SIZE_MAX);
        reader.limits(limits);
        reader.decode()
    };
    read().map_err(|cause| {
        let kind = match cause {
            image::ImageError::Limits(_) => ErrorKind::OutOfMemory,
            _ => ErrorKind::InvalidInput,
        };
        let text = format!("expected an image (BMP, JPEG, PNG, PNM, TIFF or WebP): {cause}");
        Error::new(kind, text).because(cause)
    })
}
