//! ONNX's tests with strings, sequences and optionals: the host's part of a session runs them, devices the tensors between.

use super::compare::{Tolerance, difference};
use super::corpus::DataSet;
use super::{from_error, host_only, one_line};
use crate::verdict::{Failure, Verdict};
use devbay_host::internals::import::read_value;
use devbay_host::{Device, Model, Port, Result, RunOptions, Session, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tests whose expected bytes are one decoder's. JPEG does not define the inverse transform to the bit: decoders differ by a few
/// levels of 255, most where two pixels share a colour.
const JPEG: &str = "test_image_decoder_decode_jpeg_";
const JPEG_LEVELS: u8 = 2;

/// Judges a test in a session.
pub fn in_session(
    name: &str,
    model: &[u8],
    set: &DataSet,
    device: &Arc<Device>,
    tolerance: Tolerance,
) -> Verdict {
    let session = match Model::from_bytes(model.to_vec()).and_then(|model| Session::new(&model, device)) {
        Ok(session) => session,
        Err(error) => return from_error(&error),
    };
    let data = || {
        Ok::<_, devbay_host::Error>((
            values(session.inputs(), &set.inputs)?,
            values(session.outputs(), &set.outputs)?,
        ))
    };
    let (inputs, expected) = match data() {
        Ok(data) => data,
        Err(error) => return host_only(format!("no value: {}", one_line(&error))),
    };
    if inputs.len() != session.inputs().len() || expected.len() != session.outputs().len() {
        let reason =
            format!("the test has {} inputs and {} outputs, the model others", inputs.len(), expected.len());
        return Verdict::Failed { failure: Failure::Suite, reason };
    }
    let names = session.inputs().iter().map(|port| &*port.name);
    let given: Vec<(&str, &Value)> = names.zip(&inputs).collect();
    let found = match session.run_values(&given, &RunOptions::default()) {
        Ok(found) => found,
        Err(error) => return from_error(&error),
    };
    if let ([Value::Tensor(found), ..], [Value::Tensor(expected), ..], true) =
        (&found[..], &expected[..], name.starts_with(JPEG))
    {
        let mut pairs = found.bytes().iter().zip(expected.bytes());
        let far = pairs.position(|(found, expected)| found.abs_diff(*expected) > JPEG_LEVELS);
        return match far {
            None if found.tensor_type() == expected.tensor_type() => Verdict::Passed,
            _ => {
                let max = found
                    .bytes()
                    .iter()
                    .zip(expected.bytes())
                    .map(|(found, expected)| found.abs_diff(*expected))
                    .max();
                let reason =
                    format!("byte {far:?} differs by more than {JPEG_LEVELS} levels, at most {max:?}");
                Verdict::Failed { failure: Failure::Wrong, reason }
            }
        };
    }
    let pairs = found.iter().zip(&expected).enumerate();
    let mut wrong = pairs.filter_map(|(i, (found, expected))| {
        Some(format!("output {i}: {}", differs(found, expected, tolerance)?))
    });
    match wrong.next() {
        Some(reason) => Verdict::Failed { failure: Failure::Wrong, reason },
        None => Verdict::Passed,
    }
}

/// Reads values of the ports' types.
fn values(ports: &[Port], data: &BTreeMap<usize, Vec<u8>>) -> Result<Vec<Value>> {
    ports.iter().zip(data.values()).map(|(port, bytes)| read_value(bytes.clone(), &port.value)).collect()
}

/// Returns how a value differs from the expected one.
fn differs(found: &Value, expected: &Value, tolerance: Tolerance) -> Option<String> {
    match (found, expected) {
        (Value::Tensor(found), Value::Tensor(expected)) => difference(found, expected, tolerance),
        (Value::Strings(found), Value::Strings(expected)) => {
            (found != expected).then(|| format!("{found:?}, expected {expected:?}"))
        }
        (Value::Sequence(found), Value::Sequence(expected)) => {
            let (found, expected) = (found.values(), expected.values());
            if found.len() != expected.len() {
                return Some(format!("{} elements, expected {}", found.len(), expected.len()));
            }
            found.iter().zip(expected).find_map(|(found, expected)| differs(found, expected, tolerance))
        }
        (Value::Optional(found), Value::Optional(expected)) => match (found.value(), expected.value()) {
            (None, None) => None,
            (Some(found), Some(expected)) => differs(found, expected, tolerance),
            _ => Some("one of the optionals has a value, the other has none".to_owned()),
        },
        _ => Some(format!("{}, expected {}", found.ty(), expected.ty())),
    }
}
