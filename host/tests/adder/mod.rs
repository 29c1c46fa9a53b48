//! A plugin with two inline devices and two kernels, linked into the tests that include this module.
//!
//! One says what it was told about numerics. The other adds integers, fails when it is told to, and takes as long as it is told to, so that threads meet in many
//! orders.

use devbay_plugin_api::abi::{
    DEVBAY_DEVICE_HOST_REFS, DEVBAY_DEVICE_KIND_CPU, DEVBAY_SPACE_ADDRESSABLE, DEVBAY_SPACE_HOST_VISIBLE,
    DEVBAY_VARIADIC,
};
use devbay_plugin_api::sdk::*;

pub struct Adder([AdderDevice; 2]);

pub struct AdderDevice(DeviceDesc);

pub struct AdderStream;

impl Plugin for Adder {
    type Device = AdderDevice;
    const ABOUT: About = About { name: "adder", vendor: "tests", version: "1", ..About::DEFAULT };
    const KERNELS: &'static [Kernel<AdderDevice>] = &[
        Kernel::new("Numerics", 1, |request| Ok(Prepared::new(Numerics(request.numerics))))
            .domain("test")
            .types(&[TypeVar::of(&[I64])])
            .operands(&[0], &[0])
            .shape(|_, _| Ok((I64, vec![1]))),
        Kernel::new("Node", 1, prepare)
            .domain("test")
            .types(&[TypeVar::of(&[I64])])
            .operands(&[0], &[0])
            .inputs(1, DEVBAY_VARIADIC)
            .in_place(&[0])
            .attributes(&["fails", "flops", "n", "plus", "spins"])
            .cost(|request| {
                let flops = request.attrs.int("flops", 1)? as u64;
                Ok(Cost { flops, bytes_read: 8, bytes_written: 8 })
            })
            .shape(|request, _| Ok((I64, vec![request.attrs.int("n", 1)?]))),
    ];

    fn create(_host: Host, _options: &Options<'_>) -> Result<Self> {
        let space =
            SpaceDesc { flags: DEVBAY_SPACE_HOST_VISIBLE | DEVBAY_SPACE_ADDRESSABLE, ..SpaceDesc::default() };
        let device = |i: usize| {
            AdderDevice(DeviceDesc {
                kind: DEVBAY_DEVICE_KIND_CPU,
                id: i.to_string(),
                name: "adder".to_owned(),
                inline: true,
                flags: DEVBAY_DEVICE_HOST_REFS,
                spaces: vec![space],
                ..DeviceDesc::default()
            })
        };
        Ok(Self([device(0), device(1)]))
    }

    fn devices(&self) -> Result<Vec<&AdderDevice>> {
        Ok(self.0.iter().collect())
    }
}

impl Device for AdderDevice {
    type Buffer = HostBuffer;
    type Stream = AdderStream;

    fn describe(&self) -> &DeviceDesc {
        &self.0
    }

    fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<HostBuffer>> {
        HostBuffer::alloc(request)
    }

    fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<AdderStream> {
        Ok(AdderStream)
    }
}

impl Stream for AdderStream {
    type Buffer = HostBuffer;

    fn copy(&self, copy: &CopyRequest<'_, HostBuffer>) -> Result<()> {
        copy.run_on_host();
        Ok(())
    }
}

/// Element `i` of the output is the sum of the elements `i` of all inputs, which repeat, and a number.
struct Add {
    n_inputs: usize,
    n: usize,
    plus: i64,
    spins: u32,
    fails: bool,
}

fn prepare(request: &PrepareRequest<'_, AdderDevice>) -> Result<Prepared> {
    Ok(Prepared::new(Add {
        n_inputs: request.inputs.len(),
        n: request.attrs.int("n", 1)? as usize,
        plus: request.attrs.int("plus", 0)?,
        spins: request.attrs.int("spins", 0)? as u32,
        fails: request.attrs.int("fails", 0)? != 0,
    }))
}

impl Launch<AdderDevice> for Add {
    fn launch(&self, _stream: &AdderStream, operands: &mut Operands<'_>) -> Result<()> {
        for _ in 0..self.spins {
            std::hint::spin_loop();
        }
        if self.fails {
            return Err(Error::invalid("it was told to fail"));
        }
        // In place the output is the first input: all is read before anything is written.
        let inputs: Vec<&[i64]> = (0..self.n_inputs).map(|k| operands.input::<i64>(k)).collect();
        let at =
            |i: usize| inputs.iter().fold(self.plus, |sum, input| sum.wrapping_add(input[i % input.len()]));
        let sums: Vec<i64> = (0..self.n).map(at).collect();
        let output = operands.output_ref(0).addr as *mut i64;
        // SAFETY: the host lends as many numbers as the output has, and the inputs are read no more.
        unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), output, self.n) };
        Ok(())
    }
}

devbay_plugin_api::static_plugin!(Adder);

/// Gives what it was prepared with.
struct Numerics(u64);

impl Launch<AdderDevice> for Numerics {
    fn launch(&self, _stream: &AdderStream, operands: &mut Operands<'_>) -> Result<()> {
        operands.output::<i64>(0)[0] = self.0 as i64;
        Ok(())
    }
}
