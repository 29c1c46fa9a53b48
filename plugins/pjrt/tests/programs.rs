//! Programs on real libraries: StableHLO as text and as bytecode, compiled, run, stored, donated to, at once and for long.

mod support;

use devbay_plugin_pjrt::buffer::Buffer;
use devbay_plugin_pjrt::client::{Client, Device};
use devbay_plugin_pjrt::element::{ArrayType, ElementType};
use devbay_plugin_pjrt::error::{Error, Result};
use devbay_plugin_pjrt::executable::{CompileOptions, Executable, Execution, Input};
use devbay_plugin_pjrt::library::{Attribute, Value};
use support::{ADD, Program, devices, download, libraries, programs, upload};

fn compile(device: &Device, code: &[u8], n_inputs: usize) -> Result<Executable> {
    Executable::compile(device.client(), code, n_inputs, &CompileOptions::minimal())
}

fn execute(executable: &Executable, buffers: &[Buffer]) -> Result<Execution> {
    let inputs: Vec<Input<'_>> = buffers.iter().map(Input::from).collect();
    executable.execute(&inputs)
}

/// Runs a program and compares what it gives.
fn check(device: &Device, executable: &Executable, program: &Program) {
    let place = format!("{} on {:?}", program.name, device.client().library());
    let arrays = program.inputs.iter();
    let inputs: Vec<Buffer> = arrays.map(|array| upload(device, &array.values, &array.dims)).collect();
    let execution = execute(executable, &inputs).unwrap();
    execution.done.wait().unwrap();
    assert_eq!(execution.outputs.len(), program.outputs.len(), "{place}");
    for (output, expected) in execution.outputs.iter().zip(&program.outputs) {
        let found = download(output);
        assert_eq!(output.dims().unwrap(), expected.dims, "{place}");
        assert_eq!(output.element_type().unwrap(), ElementType::F32, "{place}");
        assert_eq!(found.len(), expected.values.len(), "{place}");
        let largest = expected.values.iter().fold(0f32, |most, value| most.max(value.abs()));
        for (a, b) in found.iter().zip(&expected.values) {
            assert!((a - b).abs() <= 1e-5 * largest + 1e-6, "{place}: {a} where {b} was expected");
        }
        let view = output.host_view().unwrap();
        assert!(view.is_none_or(|view| support::numbers(&view) == found), "{place}: the view differs");
    }
}

#[test]
fn programs_give_what_is_expected_also_after_they_were_stored() {
    for device in devices() {
        for program in programs() {
            let n_inputs = program.inputs.len();
            let executable = compile(&device, &program.code, n_inputs).unwrap();
            assert_eq!((executable.n_inputs(), executable.n_outputs()), (n_inputs, program.outputs.len()));
            let types = program
                .outputs
                .iter()
                .map(|array| ArrayType { element: ElementType::F32, dims: array.dims.clone() });
            assert_eq!(executable.outputs().unwrap(), types.collect::<Vec<_>>());
            check(&device, &executable, &program);

            let bytes = executable.serialize().unwrap();
            drop(executable);
            // SAFETY: just stored by the same library.
            let loaded = unsafe { Executable::load(device.client(), &bytes, n_inputs) }.unwrap();
            check(&device, &loaded, &program);
        }
    }
}

#[test]
fn a_broken_text_is_an_error_in_the_compilers_words() {
    for device in devices() {
        let error = compile(&device, b"module @add { this is no program }", 0).unwrap_err();
        let Error::Library { function: "PJRT_Client_Compile", message, .. } = &error else {
            panic!("{error:?}")
        };
        assert!(message.contains("expected") || message.contains("parse"), "{message}");
        assert!(compile(&device, b"", 0).is_err());
    }
}

#[test]
fn inputs_that_cannot_be_right_do_not_reach_the_library() {
    for device in devices() {
        let add = compile(&device, ADD, 2).unwrap();
        let one = [upload(&device, &[1.0; 4], &[4])];
        let error = execute(&add, &one).map(drop).unwrap_err();
        assert_eq!(error, Error::Invalid { text: "expected 2 inputs, found 1".into() });

        let other = Client::create(device.client().library(), &[]).unwrap().devices().remove(0);
        let mixed = [upload(&device, &[1.0; 4], &[4]), upload(&other, &[1.0; 4], &[4])];
        let error = execute(&add, &mixed).map(drop).unwrap_err();
        assert_eq!(error, Error::Invalid { text: "input 1 is a buffer of another client".into() });
    }
}

#[test]
fn an_input_of_another_shape_is_an_error_in_the_librarys_words() {
    for device in devices() {
        let add = compile(&device, ADD, 2).unwrap();
        let inputs = [upload(&device, &[1.0; 4], &[4]), upload(&device, &[1.0; 6], &[6])];
        let error = execute(&add, &inputs).and_then(|execution| execution.done.wait()).unwrap_err();
        assert!(matches!(error, Error::Library { .. }), "{error:?}");
        assert_eq!(error.status(), 3, "{error}");
    }
}

/// An addition that may take its first input's memory for the sum.
const ADD_TO: &[u8] = b"module @add_to {
  func.func public @main(%a: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<4xf32>) -> tensor<4xf32> {
    %sum = stablehlo.add %a, %b : tensor<4xf32>
    return %sum : tensor<4xf32>
  }
}";

#[test]
fn an_input_is_taken_only_where_it_is_donated() {
    for device in devices() {
        let add = compile(&device, ADD_TO, 2).unwrap();
        let (a, b) = (upload(&device, &[1.0; 4], &[4]), upload(&device, &[2.0; 4], &[4]));
        for _ in 0..2 {
            let kept = add.execute(&[Input::from(&a), Input::from(&b)]).unwrap();
            assert_eq!(download(&kept.outputs[0]), [3.0; 4]);
            assert!(!a.is_deleted().unwrap());
        }
        let taken = add.execute(&[Input { buffer: &a, donate: true }, Input::from(&b)]).unwrap();
        assert_eq!(download(&taken.outputs[0]), [3.0; 4]);
        assert!(a.is_deleted().unwrap() && !b.is_deleted().unwrap());
        let error =
            add.execute(&[Input::from(&a), Input::from(&b)]).and_then(|again| again.done.wait()).unwrap_err();
        assert!(matches!(error, Error::Library { .. }), "{error:?}");
    }
}

#[test]
fn a_program_runs_on_the_device_it_was_compiled_for() {
    for library in libraries() {
        let option = Attribute { name: "cpu_device_count".into(), value: Value::Integer(3) };
        let client = Client::create(library, &[option]).unwrap();
        let devices = client.devices();
        // The option is that of XLA's CPU; others have the devices that they have.
        assert!(client.platform_name() != "cpu" || devices.len() == 3, "{devices:?}");
        for device in &devices {
            let options = CompileOptions::for_device(device.id());
            let add = Executable::compile(&client, ADD, 2, &options).unwrap();
            let inputs = [upload(device, &[1.0; 4], &[4]), upload(device, &[2.0; 4], &[4])];
            assert_eq!(download(&execute(&add, &inputs).unwrap().outputs[0]), [3.0; 4]);
            for other in devices.iter().filter(|other| other.id() != device.id()) {
                let inputs = [upload(other, &[1.0; 4], &[4]), upload(other, &[2.0; 4], &[4])];
                let error = execute(&add, &inputs).map(drop).unwrap_err();
                assert!(matches!(error, Error::Library { .. }), "{error:?}");
            }
        }
    }
}

#[test]
fn threads_execute_at_once() {
    for device in devices() {
        let add = compile(&device, ADD, 2).unwrap();
        let other = compile(&device, ADD_TO, 2).unwrap();
        let shared = upload(&device, &[10.0; 4], &[4]);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (device, shared) = (&device, &shared);
                let executable = if thread % 2 == 0 { &add } else { &other };
                scope.spawn(move || {
                    for i in 0..200 {
                        let own = upload(device, &[i as f32; 4], &[4]);
                        let donated = Input { buffer: &own, donate: true };
                        let execution = executable.execute(&[donated, Input::from(shared)]).unwrap();
                        assert_eq!(download(&execution.outputs[0]), [i as f32 + 10.0; 4]);
                    }
                });
            }
        });
    }
}
