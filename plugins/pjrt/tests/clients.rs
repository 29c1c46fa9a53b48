//! Libraries, clients, buffers and events as they are; and what is no PJRT library.

mod support;

use devbay_plugin_pjrt::buffer::{HostArray, HostMemory};
use devbay_plugin_pjrt::client::Client;
use devbay_plugin_pjrt::element::ElementType;
use devbay_plugin_pjrt::error::Error;
use devbay_plugin_pjrt::executable::{CompileOptions, Executable, Input};
use devbay_plugin_pjrt::library::{Attribute, Library, Value};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;
use support::{ADD, devices, download, libraries, upload};

#[test]
fn a_file_that_is_no_library_and_a_library_that_is_not_pjrts_are_told_apart() {
    // SAFETY: a text, which the loader refuses.
    let error =
        unsafe { Library::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")) }.unwrap_err();
    assert!(matches!(&error, Error::Open { reason, .. } if !reason.is_empty()), "{error}");
    // SAFETY: nothing is there.
    let error = unsafe { Library::open(Path::new("/nowhere/libpjrt.so")) }.unwrap_err();
    assert!(matches!(&error, Error::Open { .. }), "{error}");
    assert_eq!(error.status(), 14);

    #[cfg(target_os = "linux")]
    {
        // SAFETY: the C library, which this process has loaded already.
        let error = unsafe { Library::open(Path::new("libc.so.6")) }.unwrap_err();
        assert!(matches!(&error, Error::NoSymbol { .. }), "{error}");
        assert!(error.to_string().contains("GetPjrtApi"), "{error}");
    }
}

#[test]
fn a_library_is_opened_once_and_says_what_it_is() {
    for library in libraries() {
        // SAFETY: the library is one that was opened before, so it is trusted.
        let again = unsafe { Library::open(library.path()) }.unwrap();
        assert!(std::ptr::eq(library, again));
        assert_eq!(library.version().0, 0);
        let stablehlo = library.stablehlo_version().unwrap();
        assert!(stablehlo[0] >= 1, "{stablehlo:?}");
        assert!(library.attributes().iter().any(|attribute| attribute.name == "xla_version"));
    }
}

#[test]
fn a_client_lists_its_devices() {
    for library in libraries() {
        let client = Client::create(library, &[]).unwrap();
        assert!(!client.platform_name().is_empty());
        for device in client.devices() {
            assert!(
                !device.kind().is_empty() && !device.description().is_empty() && !device.detail().is_empty()
            );
            assert!(!device.default_memory().unwrap().kind.is_empty());
            // XLA's CPU has no statistics, which is no error.
            device.memory_stats().unwrap();
            assert!(device.client().is(&client));
        }
        let unknown = Attribute { name: "x".into(), value: Value::Unknown(9) };
        assert_eq!(Client::create(library, &[unknown]).unwrap_err().status(), 3);
    }
}

#[test]
fn arrays_go_to_a_device_and_come_back() {
    for device in devices() {
        let values: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let array = upload(&device, &values, &[2, 3, 4]);
        assert_eq!(array.dims().unwrap(), [2, 3, 4]);
        assert_eq!((array.size_bytes().unwrap(), array.element_type().unwrap()), (96, ElementType::F32));
        assert!(array.size_on_device_bytes().unwrap() >= 96);
        assert_eq!(download(&array), values);
        let view = array.host_view().unwrap();
        assert!(view.is_none_or(|view| support::numbers(&view) == values));

        // Columns of a row-major matrix.
        let host = HostArray {
            bytes: bytemuck::cast_slice(&values),
            element: ElementType::F32,
            dims: &[4, 6],
            byte_strides: Some(&[4, 16]),
        };
        let turned = download(&device.upload(&host).unwrap());
        let expected: Vec<f32> = (0..24).map(|i| (i / 6 + i % 6 * 4) as f32).collect();
        assert_eq!(turned, expected);

        let (scalar, none) = (upload(&device, &[7.0], &[]), upload(&device, &[], &[0, 3]));
        assert_eq!((download(&scalar), download(&none)), (vec![7.0], vec![]));

        array.delete().unwrap();
        assert!(array.is_deleted().unwrap());
        let mut bytes = [0; 96];
        assert!(matches!(array.download(&mut bytes).unwrap_err(), Error::Library { .. }));
    }
}

#[test]
fn memory_that_is_not_the_arrays_is_refused() {
    for device in devices() {
        let bytes = [0; 16];
        let array = HostArray { bytes: &bytes, element: ElementType::F32, dims: &[4], byte_strides: None };
        let refused = [
            HostArray { dims: &[5], ..array },
            HostArray { dims: &[3], ..array },
            HostArray { dims: &[-4], ..array },
            HostArray { dims: &[i64::MAX, i64::MAX], ..array },
            HostArray { byte_strides: Some(&[8]), ..array },
            HostArray { byte_strides: Some(&[-4]), ..array },
            HostArray { byte_strides: Some(&[]), ..array },
            HostArray { element: ElementType::S4, ..array },
            HostArray { element: ElementType(4711), ..array },
        ];
        for array in refused {
            assert!(matches!(device.upload(&array).unwrap_err(), Error::Invalid { .. }), "{array:?}");
        }
        let uploaded = device.upload(&array).unwrap();
        assert!(matches!(uploaded.download(&mut [0; 15]).unwrap_err(), Error::Invalid { .. }));
    }
}

#[test]
fn host_memory_is_free_again_when_its_event_says_so() {
    for device in devices() {
        // Aligned so that a CPU device takes the memory as it is.
        #[repr(align(64))]
        struct Aligned([u8; 4096]);
        let mut memory = Box::new(Aligned([0; 4096]));
        for (i, number) in bytemuck::cast_slice_mut::<u8, f32>(&mut memory.0).iter_mut().enumerate() {
            *number = i as f32;
        }
        for kind in [HostMemory::UntilTransferred, HostMemory::ZeroCopy] {
            let host =
                HostArray { bytes: &memory.0, element: ElementType::F32, dims: &[1024], byte_strides: None };
            // SAFETY: the memory outlives the wait below, and is not written meanwhile.
            let (buffer, done) = unsafe { device.upload_from(&host, kind) }.unwrap();
            if kind == HostMemory::UntilTransferred {
                done.wait().unwrap();
            }
            assert_eq!(download(&buffer)[1023], 1023.0);
            drop(buffer);
            done.wait().unwrap();
            assert_eq!(done.outcome().unwrap(), Some(Ok(())));
        }
    }
}

/// An addition that may take its first input's memory for the sum.
const ADD_TO: &[u8] = b"func.func public @main(
    %a: tensor<65536xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<65536xf32>) -> tensor<65536xf32> {
    %sum = stablehlo.add %a, %b : tensor<65536xf32>
    return %sum : tensor<65536xf32>
}";

#[test]
fn what_a_view_shows_stays_while_it_lives() {
    for device in devices() {
        let add = Executable::compile(device.client(), ADD_TO, 2, &CompileOptions::minimal()).unwrap();
        let array = |value: f32| upload(&device, &[value; 65536], &[65536]);
        let (a, b) = (array(1.0), array(2.0));
        // Devices with memory of their own have no views.
        let Some(view) = a.host_view().unwrap() else { continue };
        // A donation now is refused, or the program takes other memory.
        if let Ok(execution) = add.execute(&[Input { buffer: &a, donate: true }, Input::from(&b)]) {
            assert_eq!(download(&execution.outputs[0])[0], 3.0);
        }
        a.delete().unwrap();
        let others: Vec<_> = (0..20).map(|i| array(i as f32 + 5.0)).collect();
        assert_eq!(support::numbers(&view), [1.0; 65536]);
        assert_eq!(others.len(), 20);
    }
}

#[test]
fn a_callback_comes_once_and_its_panic_stays_in_it() {
    for device in devices() {
        let add = Executable::compile(device.client(), ADD, 2, &CompileOptions::minimal()).unwrap();
        let a = upload(&device, &[1.0; 4], &[4]);
        let (sender, receiver) = mpsc::channel();
        for i in 0..100 {
            let execution = add.execute(&[Input::from(&a), Input::from(&a)]).unwrap();
            let sender = sender.clone();
            execution.done.on_ready(move |result| sender.send((i, result)).unwrap()).unwrap();
        }
        drop(sender);
        let mut seen: Vec<i32> = receiver.iter().map(|(i, result)| result.map(|()| i).unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());

        a.ready().unwrap().on_ready(|_| panic!("in a callback, as the test wants")).unwrap();
        a.ready().unwrap().wait().unwrap();

        a.delete().unwrap();
        let (sender, receiver) = mpsc::channel();
        a.ready().unwrap().on_ready(move |result| sender.send(result).unwrap()).unwrap();
        assert!(matches!(receiver.recv().unwrap(), Err(Error::Library { .. })));
    }
}

/// Takes long enough that its end comes after a callback was registered.
const PRODUCT: &[u8] = b"func.func public @main(%a: tensor<1024x1024xf32>) -> tensor<1024x1024xf32> {
    %b = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
        : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    return %b : tensor<1024x1024xf32>
}";

#[test]
fn a_client_may_end_in_a_callback() {
    for library in libraries() {
        let device = Client::create(library, &[]).unwrap().devices().remove(0);
        let product = Executable::compile(device.client(), PRODUCT, 1, &CompileOptions::minimal()).unwrap();
        let a = upload(&device, &vec![1.0; 1 << 20], &[1024, 1024]);
        let execution = product.execute(&[Input::from(&a)]).unwrap();
        let (sender, receiver) = mpsc::channel();
        let everything = (device, product, a, execution.outputs);
        let done = move |result| {
            drop(everything);
            sender.send((result, std::thread::current().id())).unwrap();
        };
        execution.done.on_ready(done).unwrap();
        // A client that waits for the thread that destroys it would hold this up for ever.
        let (result, thread) = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(result, Ok(()));
        assert_ne!(
            thread,
            std::thread::current().id(),
            "done before the callback was registered: nothing was tested"
        );
    }
}
