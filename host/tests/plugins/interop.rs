//! Tensors that stay on a device, and memory that is shared with other libraries (B10, B15): on the processor, whose
//! device that queues its work stands for one with memory of its own.

use crate::library::library;
use devbay_host::internals::core::program::text;
use devbay_host::internals::core::tensor::F32;
use devbay_host::internals::device_tensor::dlpark::ffi::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned,
};
use devbay_host::internals::device_tensor::dlpark::metadata::Dynamic;
use devbay_host::internals::device_tensor::dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use devbay_host::{
    AppStream, Device, DeviceTensor, ErrorKind, Model, Policy, Requirements, RunOptions, Runtime, Session,
    Tensor,
};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const PROGRAM: &str = r#"devbay-program 1

program "twice"(%x: f32[4]) {
  %y: f32[4] = Add@14(%x, %x) as "sum"
  return %y
}
"#;

/// A program that gives its input as it is.
const SAME: &str = r#"devbay-program 1

program "same"(%x: f32[4]) {
  %y: f32[4] = Identity@25(%x) as "same"
  return %y
}
"#;

fn device(streams: &str) -> (Runtime, Arc<Device>) {
    let runtime = Runtime::builder().plugin(library("cpu")).option("cpu", "streams", streams).build();
    let runtime = runtime.expect("a runtime");
    let device = runtime.choose(&Policy::Auto, &Requirements::default()).expect("a device").device;
    (runtime, device)
}

fn session(program: &str, device: &Arc<Device>) -> Session {
    Session::new(&Model::from_program(text::parse(program).expect("a program")), device).expect("a session")
}

fn tensor(values: [f32; 4]) -> Tensor {
    Tensor::from_elements(&[4], &values).expect("a tensor")
}

fn run(session: &Session, x: &DeviceTensor) -> DeviceTensor {
    let mut results = session.run_on_device(&[("x", x)], None, &RunOptions::default()).expect("a run");
    results.pop().expect("a result")
}

fn values(tensor: &DeviceTensor) -> Vec<f32> {
    tensor.to_tensor().expect("the content").elements::<f32>().expect("floats").to_vec()
}

/// Memory of another library's, which counts when it is given back.
struct Lent {
    values: Vec<f32>,
    n_dropped: Arc<AtomicUsize>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.n_dropped.fetch_add(1, Ordering::SeqCst);
    }
}

/// 64 bytes more than are needed, so that there is room to begin at any place.
fn lent(n_dropped: &Arc<AtomicUsize>) -> (Box<Lent>, usize) {
    let lent = Box::new(Lent { values: vec![1.0; 36], n_dropped: Arc::clone(n_dropped) });
    let start = lent.values.as_ptr().expose_provenance();
    let skipped = (start.next_multiple_of(64) - start) / 4;
    (lent, skipped)
}

/// A DLPack tensor of four numbers, as another library makes it; `edit` makes it another one.
fn dlpack<M: ManagedTensorBase>(
    n_dropped: &Arc<AtomicUsize>,
    edit: impl FnOnce(&mut devbay_host::internals::device_tensor::dlpark::ffi::DLTensor),
) -> Managed<M> {
    let (lent, skipped) = lent(n_dropped);
    let start = lent.values.as_ptr().cast_mut();
    let mut tensor = Dynamic::compact(vec![4i64]).initialize_as::<M>(lent).expect("a DLPack tensor");
    tensor.set_data(start.cast()).set_byte_offset(4 * skipped as u64);
    tensor.set_device(DLDevice { device_type: DLDeviceType::CPU, device_id: 0 });
    tensor.set_dtype(DLDataType { code: DLDataTypeCode::FLOAT, bits: 32, lanes: 1 });
    edit(tensor.tensor_mut());
    // SAFETY: the memory is the box's, which the context keeps.
    unsafe { tensor.finish() }
}

#[test]
fn results_stay_on_the_device_and_are_inputs_again() {
    for streams in ["inline", "async"] {
        let (_runtime, device) = device(streams);
        let session = session(PROGRAM, &device);
        let mut x = DeviceTensor::new(&tensor([1.0, 2.0, 3.0, 4.0]), &device).expect("a tensor");
        for _ in 0..5 {
            x = run(&session, &x);
            assert_eq!(x.device().map(|device| device.name()), Some("cpu:0"), "{streams}");
        }
        assert_eq!(values(&x), [32.0, 64.0, 96.0, 128.0], "{streams}");
        // One buffer of a result, and nothing of the runs before.
        let (before, _) = device.bytes_in_use();
        drop(x);
        let (after, _) = device.bytes_in_use();
        assert!(before > after, "{streams}: {before} bytes in use, and {after} without the result");
    }
}

#[test]
fn inputs_elsewhere_are_copied_first() {
    let (_first, here) = device("inline");
    let (_second, there) = device("async");
    let x = DeviceTensor::new(&tensor([1.0, -1.0, 0.5, 0.0]), &there).expect("a tensor");
    assert_eq!(values(&run(&session(PROGRAM, &here), &x)), [2.0, -2.0, 1.0, 0.0]);
    let x = DeviceTensor::on_host(&tensor([1.0, -1.0, 0.5, 0.0])).expect("a tensor");
    assert!(x.device().is_none());
    assert_eq!(values(&run(&session(PROGRAM, &there), &x)), [2.0, -2.0, 1.0, 0.0]);
}

#[test]
fn wrong_inputs_are_refused_with_words() {
    let (_runtime, device) = device("inline");
    let session = session(PROGRAM, &device);
    let ones = Tensor::from_elements(&[3], &[1f32; 3]).expect("a tensor");
    let ones = DeviceTensor::on_host(&ones).expect("a tensor");
    let run = |inputs: &[(&str, &DeviceTensor)]| {
        session.run_on_device(inputs, None, &RunOptions::default()).map(drop).expect_err("a refusal")
    };
    let error = run(&[("x", &ones)]);
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("f32[3]"), "{error}");
    assert_eq!(run(&[]).kind(), ErrorKind::InvalidInput);
    assert_eq!(run(&[("z", &ones)]).kind(), ErrorKind::InvalidInput);
}

#[test]
fn b10_memory_of_another_library_is_used_without_a_copy_and_given_back_once() {
    for streams in ["inline", "async"] {
        let (_runtime, device) = device(streams);
        let session = session(PROGRAM, &device);
        let n_dropped = Arc::new(AtomicUsize::new(0));
        let (lent, skipped) = lent(&n_dropped);
        let native = lent.values[skipped..].as_ptr().expose_provenance() as u64;
        let in_use = device.bytes_in_use();
        // SAFETY: four floats of the box, which is the owner.
        let x = unsafe { DeviceTensor::from_native(&device, F32, &[4], native, lent) }.expect("a tensor");
        assert_eq!(
            device.bytes_in_use(),
            in_use,
            "{streams}: somebody else's memory is not the device's use"
        );
        assert_eq!(x.native().expect("a name"), native, "{streams}");
        assert_eq!(values(&run(&session, &x)), [2.0; 4], "{streams}");
        // A program that gives its input as it is gives the same memory, which then has two users.
        let same = run(&self::session(SAME, &device), &x);
        drop(x);
        assert_eq!(values(&same), [1.0; 4], "{streams}");
        if same.native().expect("a name") == native {
            assert_eq!(n_dropped.load(Ordering::SeqCst), 0, "{streams}: given back while it is used");
        }
        drop(same);
        assert_eq!(n_dropped.load(Ordering::SeqCst), 1, "{streams}");
    }
}

#[test]
fn b10_what_a_plugin_can_tell_about_memory_is_checked() {
    let (_runtime, device) = device("async");
    let n_dropped = Arc::new(AtomicUsize::new(0));
    let (lent, skipped) = lent(&n_dropped);
    let native = lent.values[skipped + 1..].as_ptr().expose_provenance() as u64;
    // SAFETY: four floats of the box, which is the owner.
    let refused = unsafe { DeviceTensor::from_native(&device, F32, &[4], native, lent) }.map(drop);
    let error = refused.expect_err("memory that is not aligned");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("no multiple of 64"), "{error}");
    assert_eq!(n_dropped.load(Ordering::SeqCst), 1, "the owner is dropped with the refusal");
}

#[test]
fn dlpack_tensors_come_in_without_a_copy_versioned_or_not() {
    fn check<M: ManagedTensorBase + 'static>() {
        for streams in ["inline", "async"] {
            let (_runtime, device) = device(streams);
            let n_dropped = Arc::new(AtomicUsize::new(0));
            let tensor = dlpack::<M>(&n_dropped, |_| {});
            let start = tensor.validate().expect("a tensor");
            let start = start.data_ptr().expose_provenance() as u64 + start.byte_offset();
            // SAFETY: the tensor says what its memory is.
            let x = unsafe { DeviceTensor::from_dlpack(tensor, &device) }.expect("a tensor");
            assert_eq!(x.native().expect("a name"), start, "{streams}");
            assert_eq!(values(&run(&session(PROGRAM, &device), &x)), [2.0; 4], "{streams}");
            assert_eq!(n_dropped.load(Ordering::SeqCst), 0, "{streams}: given back while it is used");
            drop(x);
            assert_eq!(n_dropped.load(Ordering::SeqCst), 1, "{streams}");
        }
    }
    check::<DLManagedTensorVersioned>();
    check::<DLManagedTensor>();
}

#[test]
fn dlpack_tensors_that_cannot_be_shared_are_refused_and_given_back() {
    let (_runtime, device) = device("inline");
    let n_dropped = Arc::new(AtomicUsize::new(0));
    let mut n_expected = 0;
    let mut refused = |tensor: Managed<DLManagedTensorVersioned>, words: &str| {
        // SAFETY: a tensor that is refused is not used.
        let refused = unsafe { DeviceTensor::from_dlpack(tensor, &device) }.map(drop);
        let error = refused.expect_err(words);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains(words), "expected {words}, found {error}");
        n_expected += 1;
        assert_eq!(n_dropped.load(Ordering::SeqCst), n_expected, "{words}");
    };
    // SAFETY: the stride is the tensor's own memory.
    refused(dlpack(&n_dropped, |tensor| unsafe { *tensor.strides = 2 }), "not dense and row-major");
    refused(dlpack(&n_dropped, |tensor| tensor.dtype.lanes = 4), "vectors");
    refused(dlpack(&n_dropped, |tensor| tensor.ndim = -1), "broken");
    refused(dlpack(&n_dropped, |tensor| tensor.data = null_mut()), "broken");
    // SAFETY: the shape is the tensor's own memory.
    refused(dlpack(&n_dropped, |tensor| unsafe { *tensor.shape = i64::MIN }), "broken");
    let elsewhere = DLDevice { device_type: DLDeviceType::CUDA, device_id: 1 };
    refused(dlpack(&n_dropped, |tensor| tensor.device = elsewhere), "device 1 of type 2");
}

#[test]
fn results_go_out_as_dlpack_tensors_and_outlive_their_session() {
    for streams in ["inline", "async"] {
        let (runtime, device) = device(streams);
        let y = {
            let x = DeviceTensor::on_host(&tensor([1.0, 2.0, 3.0, 4.0])).expect("a tensor");
            run(&session(PROGRAM, &device), &x)
        };
        let native = y.native().expect("a name");
        let shared = y.clone().into_dlpack().expect("a DLPack tensor");
        assert!(shared.flags().contains(DlpackFlags::READ_ONLY), "{streams}: others have it too");
        drop(shared);
        let own = y.into_dlpack().expect("a DLPack tensor");
        drop((runtime, device));
        assert!(!own.flags().contains(DlpackFlags::READ_ONLY), "{streams}");
        let view = own.validate_export().expect("a tensor as DLPack has them");
        assert_eq!((view.shape(), view.device().device_type), (&[4i64][..], DLDeviceType::CPU));
        assert_eq!(view.data_ptr().expose_provenance() as u64, native, "{streams}");
        // SAFETY: the tensor's memory is the host's.
        assert_eq!(unsafe { view.cpu_slice::<f32>() }.expect("floats"), [2.0, 4.0, 6.0, 8.0], "{streams}");
    }
    // An empty one has no memory.
    let empty = DeviceTensor::on_host(&Tensor::zeros(F32, &[0, 4]).expect("a tensor")).expect("a tensor");
    let empty = empty.into_dlpack().expect("a DLPack tensor");
    assert!(empty.validate_export().expect("a tensor").data_ptr().is_null());
}

/// Results go through DLPack to other code and back, and the memory is still the same.
#[test]
fn a_tensor_that_comes_back_is_the_same_memory() {
    let (_runtime, device) = device("async");
    let session = session(PROGRAM, &device);
    let x = run(&session, &DeviceTensor::on_host(&tensor([1.0; 4])).expect("a tensor"));
    let native = x.native().expect("a name");
    let out = x.into_dlpack().expect("a DLPack tensor").into_raw();
    // SAFETY: the pointer was just given out, and is taken back once.
    let back = unsafe { Managed::from_raw(out) }.expect("a DLPack tensor");
    // SAFETY: the tensor says what its memory is.
    let x = unsafe { DeviceTensor::from_dlpack(back, &device) }.expect("a tensor");
    assert_eq!(x.native().expect("a name"), native);
    assert_eq!(values(&run(&session, &x)), [4.0; 4]);
}

#[test]
fn b15_a_device_without_native_streams_says_so() {
    let (_runtime, device) = device("async");
    // SAFETY: NULL is a stream wherever there are native ones.
    let error = unsafe { AppStream::wrap(&device, null_mut()) }.map(drop).expect_err("no native streams");
    assert_eq!(error.kind(), ErrorKind::UnsupportedOp, "{error}");
}

#[test]
fn a_model_of_the_repository_gives_the_same_on_the_device() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mnist_cnn/model.onnx");
    let model = Model::load(&path).expect("a model of the repository's");
    for streams in ["inline", "async"] {
        let (_runtime, device) = device(streams);
        let session = Session::new(&model, &device).expect("a session");
        let name = session.inputs()[0].name.clone();
        let pixels: Vec<f32> = (0..28 * 28).map(|at| (at % 256) as f32 / 255.0).collect();
        let input = Tensor::from_elements(&[1, 1, 28, 28], &pixels).expect("a tensor");
        let expected = session.run(&[(&name, &input)]).expect("a run");
        let x = DeviceTensor::new(&input, &device).expect("a tensor");
        for _ in 0..4 {
            let found = session.run_on_device(&[(&name, &x)], None, &RunOptions::default()).expect("a run");
            let found = found[0].to_tensor().expect("the content");
            assert_eq!(found.bytes(), expected[0].bytes(), "{streams}");
        }
    }
}
