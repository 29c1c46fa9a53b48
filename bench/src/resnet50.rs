//! `resnet50`: ResNet-50 v1.5 at batch 1 in f32, beside rten, onnxruntime and OpenVINO.
//!
//! The weights are generated (`bench/python/make_resnet50.py`), to avoid a download of a hundred megabytes; the time of a
//! run does not depend on them as long as no number is denormal. The outputs of all subjects are compared before anything is
//! timed.

use crate::beside::{Case, measure};
use crate::peers::{Peer, Peers};
use crate::rows::Rows;
use crate::setup;
use anyhow::Result;
use devbay_host::internals::compare::Tolerance;
use std::time::Duration;

pub fn run(rows: &mut Rows, peers: &Peers, n_passes: usize) -> Result<()> {
    // Python writes the model, so without Python the benchmark is missing like a peer.
    let Some(folder) = peers.unless_required("resnet50", peers.generated("resnet50"))? else {
        return Ok(());
    };
    let (model, inputs) = (folder.join("model.onnx"), folder.join("inputs.npz"));
    let mut processes = peers.start(&[Peer::Rten, Peer::Onnxruntime, Peer::Openvino])?;
    for threads in setup::thread_counts() {
        let case = Case {
            model: &model,
            inputs: &inputs,
            expected: None,
            tolerance: Tolerance { relative: 1e-3, absolute: 0.0 },
        };
        let runtime = setup::runtime(threads)?;
        let moment = Duration::from_millis(250);
        let (figures, ran) = measure(&case, &runtime, peers, &mut processes, n_passes, moment)?;
        rows.case("resnet50", "resnet50", threads, "ms", &figures, ran)?;
    }
    Ok(())
}
