//! ONNX models: import, passes, planning, and a run on zeros within a deadline. `DEVBAY_FUZZ_PLUGIN` names the plugin, a
//! library without instrumentation; without it models are only imported.

use devbay_host::internals::import::from_bytes;
use devbay_host::{Device, Model, RunOptions, Runtime, Session, Tensor, TensorType};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Time limit of a run: mutations find endless loops at once, and most of a campaign would be spent in them.
const DEADLINE: Duration = Duration::from_millis(50);

/// Maximum elements of an input; larger ones only cost time.
const ELEMENTS_MAX: usize = 1 << 16;

fn device() -> Option<&'static Arc<Device>> {
    static DEVICE: OnceLock<Option<Arc<Device>>> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        let plugin = std::env::var_os("DEVBAY_FUZZ_PLUGIN")?;
        let options = Runtime::builder().threads(1).plugin(plugin);
        options.build().expect("the plugin loads").devices().into_iter().next()
    });
    device.as_ref()
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let Ok(program) = from_bytes(data.to_vec(), None) else { return };
    let Some(device) = device() else { return };
    let Ok(session) = Session::new(&Model::from_program(program), device) else { return };
    let mut inputs = Vec::new();
    for port in session.inputs() {
        let Some(ty) = &port.ty else { return };
        let Some(shape) = TensorType::known_shape(ty) else { return };
        let n = shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent));
        let Some(n) = n.filter(|n| *n <= ELEMENTS_MAX) else { return };
        let bytes = vec![0u8; (n * usize::from(ty.dtype.bits)).div_ceil(8)];
        let Ok(tensor) = Tensor::from_bytes(ty.dtype, &shape, &bytes) else { return };
        inputs.push((port.name.to_string(), tensor));
    }
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let options = RunOptions { deadline: Some(DEADLINE), ..RunOptions::default() };
    let _ = session.run_with(&given, &options);
}
