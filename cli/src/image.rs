//! Photos as inputs, and readable classes as results.
//!
//! `preprocessing.json` beside a model describes how a photo becomes its input:
//!
//! ```json
//! {
//!   "input": "image", "output": "logits", "softmax": true, "labels": "labels.txt",
//!   "width": 224, "height": 224, "resize_shorter_side": 256, "channels": "RGB", "layout": "NCHW",
//!   "scale": 0.00392156862745098, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]
//! }
//! ```
//!
//! The photo is resized (its shorter side to `resize_shorter_side`, else to the whole size) and cropped to the middle; each
//! channel becomes `(value * scale - mean) / std`.

use anyhow::{Context, Result, anyhow, bail};
use devbay_host::internals::file::{Outside, open_beside, open_regular, read_open_text, read_regular_text};
use devbay_host::{Error, ErrorKind, Tensor};
use devbay_plugin_api::reserve::{self, Size};
use image::ImageDecoder;
use image::imageops::FilterType;
use serde::{Deserialize, Serialize};
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Maximum memory for an image at any step. An image of 1 by 65535 pixels, stretched to a shorter side of 256, would take 70
/// GB.
const IMAGE_BYTES_MAX: usize = 4 << 30;
/// Bytes per pixel during resizing: four numbers.
const RESIZED_PIXEL_BYTES: usize = 16;

/// Checks that the memory that the image library is about to allocate is available: without it, the library would abort.
///
/// # Errors
/// Out of memory, also for more than [`IMAGE_BYTES_MAX`]: systems that overcommit grant memory that they do not have.
fn room(bytes: Size, photo: &Path) -> Result<()> {
    const WHAT: &str = "an image and its resized form";
    let bytes = bytes.get(WHAT).ok();
    if bytes.is_none_or(|bytes| bytes > IMAGE_BYTES_MAX) {
        let text = match bytes {
            Some(bytes) => format!("{bytes} bytes for an image, at most {IMAGE_BYTES_MAX} are taken"),
            None => "more bytes for an image than can be counted".to_owned(),
        };
        return Err(Error::new(ErrorKind::OutOfMemory, text).in_file(photo.display()).into());
    }
    let found = reserve::room(bytes, WHAT).map_err(Error::from);
    Ok(found.map_err(|error| error.in_file(photo.display()))?)
}
/// Maximum size of a preprocessing file.
const PREPROCESSING_SIZE_MAX: u64 = 1 << 20;
/// Maximum size of a list of labels.
const LABELS_SIZE_MAX: u64 = 16 << 20;

/// The conversion of a photo to an input, and of an output to classes.
#[derive(Deserialize)]
pub struct Preprocessing {
    input: String,
    output: String,
    #[serde(default)]
    softmax: bool,
    labels: Option<PathBuf>,
    width: u32,
    height: u32,
    resize_shorter_side: Option<u32>,
    /// `RGB`, `BGR` or `GRAY`.
    channels: String,
    /// `NCHW` or `NHWC`.
    layout: String,
    scale: f32,
    mean: Vec<f32>,
    std: Vec<f32>,
    #[serde(skip)]
    folder: PathBuf,
}

/// One class with its probability.
#[derive(Serialize)]
pub struct Class {
    pub label: String,
    pub share: f64,
}

impl Preprocessing {
    /// Reads the preprocessing file beside a model.
    ///
    /// # Errors
    /// If it does not exist or cannot be read.
    pub fn beside(model: &Path) -> Result<Self> {
        let folder = model.parent().unwrap_or(Path::new("."));
        let path = folder.join("preprocessing.json");
        let text = text_beside(folder, Path::new("preprocessing.json"), PREPROCESSING_SIZE_MAX)
            .with_context(|| {
                format!("--image needs {}, which says how a photo becomes an input", path.display())
            })?;
        let mut this: Self = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        folder.clone_into(&mut this.folder);
        let n = this.n_channels()?;
        if this.mean.len() != n || this.std.len() != n || this.std.contains(&0.0) {
            bail!("{}: mean and std have {n} numbers each, std none that is 0", path.display());
        }
        if this.width == 0 || this.height == 0 || this.width > 16384 || this.height > 16384 {
            bail!("{}: an image of {} by {}", path.display(), this.width, this.height);
        }
        Ok(this)
    }

    fn n_channels(&self) -> Result<usize> {
        match self.channels.as_str() {
            "RGB" | "BGR" => Ok(3),
            "GRAY" => Ok(1),
            other => bail!("channels are RGB, BGR or GRAY, found {other}"),
        }
    }

    /// Returns the input for a photo: name and tensor.
    ///
    /// # Errors
    /// For a file that is not a photo.
    pub fn apply(&self, photo: &Path) -> Result<(String, Tensor)> {
        let no_image = || format!("{} is no JPEG or PNG image", photo.display());
        let reader = open_regular(photo)
            .and_then(|(file, _)| image::ImageReader::new(BufReader::new(file)).with_guessed_format())
            .map_err(|cause| {
                let text = format!("the image cannot be read: {cause}");
                Error::new(ErrorKind::of_io(&cause), text).in_file(photo.display()).because(cause)
            })?;
        let decoder = reader.into_decoder().with_context(no_image)?;
        // The decoder holds the packed pixels, and returns a copy.
        room(Size::of(usize::try_from(decoder.total_bytes()).unwrap_or(usize::MAX)) * 2, photo)?;
        let image = image::DynamicImage::from_decoder(decoder).with_context(no_image)?;
        let [w, h] = self.resized(image.width(), image.height());
        // Rows are resized first, to four channels of numbers; both results exist at the same time.
        let pixels = |w: u32, h: u32| Size::of(w as usize) * h as usize;
        room((pixels(image.width(), h) + pixels(w, h)) * RESIZED_PIXEL_BYTES, photo)?;
        let resized = image.resize_exact(w, h, FilterType::Triangle);
        if resized.width() < self.width || resized.height() < self.height {
            bail!("{}: resize_shorter_side is smaller than the image", photo.display());
        }
        let (x, y) = ((resized.width() - self.width) / 2, (resized.height() - self.height) / 2);
        let cut = resized.crop_imm(x, y, self.width, self.height);
        let (n, w, h) = (self.n_channels()?, self.width as usize, self.height as usize);
        // The cropped image at up to 8 bytes a pixel, its bytes, and the numbers twice: here and in the tensor.
        room(Size::of(w) * h * (16 + 9 * n), photo)?;
        let pixels: Vec<u8> = if n == 1 { cut.to_luma8().into_raw() } else { cut.to_rgb8().into_raw() };
        let planar = self.layout == "NCHW";
        let mut values = reserve::zeroed::<f32>(n * w * h, "an image's numbers")?;
        for (i, &byte) in pixels.iter().enumerate() {
            let (pixel, channel) = (i / n, i % n);
            let channel = if self.channels == "BGR" { 2 - channel } else { channel };
            let at = if planar { channel * w * h + pixel } else { pixel * n + channel };
            values[at] = (f32::from(byte) * self.scale - self.mean[channel]) / self.std[channel];
        }
        let shape = match self.layout.as_str() {
            "NCHW" => [1, n, h, w],
            "NHWC" => [1, h, w, n],
            other => bail!("layout is NCHW or NHWC, found {other}"),
        };
        Ok((self.input.clone(), Tensor::from_elements(&shape, &values)?))
    }

    /// Returns the width and height of the image before cropping.
    fn resized(&self, width: u32, height: u32) -> [u32; 2] {
        let Some(side) = self.resize_shorter_side else {
            return [self.width, self.height];
        };
        let side = side.max(self.width.min(self.height));
        let (w, h) = (f64::from(width), f64::from(height));
        let factor = f64::from(side) / w.min(h);
        let whole = |extent: f64| ((extent * factor).round() as u32).max(1);
        [whole(w), whole(h)]
    }

    /// Returns the most likely classes.
    ///
    /// # Errors
    /// If the output does not exist, or the labels cannot be read.
    pub fn classes(
        &self,
        outputs: &[(&str, &Tensor)],
        labels: Option<&Path>,
        top: usize,
    ) -> Result<Vec<Class>> {
        let found = outputs.iter().find(|(name, _)| *name == self.output);
        let (_, tensor) = found.with_context(|| format!("the model has no output `{}`", self.output))?;
        let values = tensor.elements::<f32>().context("the output is no f32")?;
        let mut shares: Vec<f64> = reserve::collected(values.iter().map(|&v| f64::from(v)), "the classes")?;
        if self.softmax {
            let largest = shares.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = shares.iter().map(|v| (v - largest).exp()).sum();
            for share in &mut shares {
                *share = (*share - largest).exp() / sum;
            }
        }
        let (path, text) = match (labels, &self.labels) {
            // The user may read the file that they named, wherever it is.
            (Some(path), _) => {
                (path.to_owned(), read_regular_text(path, LABELS_SIZE_MAX).map_err(anyhow::Error::from))
            }
            (None, Some(name)) => (self.folder.join(name), text_beside(&self.folder, name, LABELS_SIZE_MAX)),
            (None, None) => bail!("no labels: give --labels FILE"),
        };
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let names: Vec<&str> = reserve::collected(text.lines(), "the labels")?;
        if names.len() != shares.len() {
            bail!("{} has {} labels, the model {} classes", path.display(), names.len(), shares.len());
        }
        let mut order: Vec<usize> = reserve::collected(0..shares.len(), "the classes")?;
        // Sorts in place; equal shares keep the order of the classes.
        order.sort_unstable_by(|&a, &b| shares[b].total_cmp(&shares[a]).then(a.cmp(&b)));
        let class = |&i: &usize| Class { label: names[i].to_owned(), share: shares[i] };
        Ok(order.iter().take(top).map(class).collect())
    }
}

/// Reads a text file that a model refers to, which must be in the model's folder.
fn text_beside(folder: &Path, name: &Path, size_max: u64) -> Result<String> {
    let (file, about, _) = open_beside(folder, name).map_err(|why| match why {
        Outside::Io(..) => anyhow::Error::from(why),
        why => anyhow!("expected a file in the model's folder, found {name:?}, {why}"),
    })?;
    Ok(read_open_text(file, &about, size_max)?)
}
