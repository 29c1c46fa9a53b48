//! Photos as `--image` converts them to inputs: decoded, resized, cropped. The first byte selects the form.

// The command's own code, because a binary cannot be a dependency.
#[path = "../../cli/src/image.rs"]
#[allow(dead_code, reason = "the command also names classes, which reads fields that a photo's way does not")]
mod photo;

use std::path::PathBuf;
use std::sync::OnceLock;

/// Maximum number of pixels of a decoded photo.
const PIXELS_MAX: u64 = 1 << 14;

/// Forms that take little memory for a photo of any shape.
const FORMS: [&str; 4] = [
    r#""channels":"RGB","layout":"NCHW","width":8,"height":8,"mean":[0,0,0],"std":[1,1,1]"#,
    r#""channels":"BGR","layout":"NHWC","width":5,"height":7,"resize_shorter_side":8,"mean":[0,0,0],"std":[1,1,1]"#,
    r#""channels":"GRAY","layout":"NCHW","width":1,"height":9,"mean":[0.5],"std":[0.5]"#,
    r#""channels":"GRAY","layout":"NHWC","width":3,"height":3,"resize_shorter_side":2,"mean":[0],"std":[1]"#,
];

/// Returns the forms, each read like that of a model in its own folder, and a path for the photo.
fn forms() -> &'static (Vec<photo::Preprocessing>, PathBuf) {
    static FOLDER: OnceLock<(Vec<photo::Preprocessing>, PathBuf)> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("devbay-fuzz-{}", std::process::id()));
        let read = |form: &&str| {
            std::fs::create_dir_all(&folder).expect("a folder");
            let text = format!(r#"{{"input":"x","output":"y","scale":0.01,{form}}}"#);
            std::fs::write(folder.join("preprocessing.json"), text).expect("a file");
            photo::Preprocessing::beside(&folder.join("model.onnx")).expect("a form")
        };
        (FORMS.iter().map(read).collect(), folder.join("photo"))
    })
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((form, rest)) = data.split_first() else { return };
    // Large photos take long and run the same code; the command's own tests show that they are refused in time.
    let reader = image::ImageReader::new(std::io::Cursor::new(rest)).with_guessed_format();
    let pixels = reader.ok().and_then(|reader| reader.into_dimensions().ok());
    if pixels.is_some_and(|(width, height)| u64::from(width) * u64::from(height) > PIXELS_MAX) {
        return;
    }
    let (forms, path) = forms();
    if std::fs::write(path, rest).is_ok() {
        let _ = forms[usize::from(*form) % forms.len()].apply(path);
    }
}
