//! A devbay plugin: one device and three kernels, Relu, Add and MatMul of f32.
//!
//! It works as it is, with the processor as its device: put your driver's calls where memory is
//! allocated and copied, and where kernels are prepared and launched. The SDK makes the table of
//! functions that the host calls, and turns a panic into an error before it leaves the library.
//! Rules are numbered as in devbay's docs/abi-rules.md.

use devbay_plugin_api::abi::DEVBAY_DEVICE_HOST_REFS;
use devbay_plugin_api::sdk::*;

/// One use of the plugin: all its state hangs from here, as many may live at once.
pub struct Instance {
    device: Processor,
}

/// The one device. A driver's context would stand here.
pub struct Processor {
    desc: DeviceDesc,
}

/// A queue of work, which is done when the call returns: there is nothing to remember.
pub struct Queue;

impl Plugin for Instance {
    type Device = Processor;

    const ABOUT: About = About {
        name: "template-plugin",
        vendor: "your company",
        version: env!("CARGO_PKG_VERSION"),
        profiles: &["base", "kernels"],
        ..About::DEFAULT
    };

    /// Ops of ONNX's, as the opset of that number has them. The SDK refuses other types.
    const KERNELS: &'static [Kernel<Processor>] = &[
        Kernel::new("Relu", 14, relu).types(F32S).operands(&[0], &[0]),
        Kernel::new("Add", 14, add).types(F32S).operands(&[0, 0], &[0]),
        Kernel::new("MatMul", 13, matmul).types(F32S).operands(&[0, 0], &[0]),
    ];

    fn create(_host: Host, _options: &Options<'_>) -> Result<Self> {
        let desc = DeviceDesc {
            id: "0".to_owned(),
            name: "template-plugin device".to_owned(),
            inline: true,
            flags: DEVBAY_DEVICE_HOST_REFS,
            ..DeviceDesc::default()
        };
        Ok(Self { device: Processor { desc } })
    }

    fn devices(&self) -> Result<Vec<&Processor>> {
        Ok(vec![&self.device])
    }
}

impl Device for Processor {
    type Buffer = HostBuffer;
    type Stream = Queue;

    fn describe(&self) -> &DeviceDesc {
        &self.desc
    }

    fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<HostBuffer>> {
        HostBuffer::alloc(request)
    }

    fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<Queue> {
        Ok(Queue)
    }
}

impl Stream for Queue {
    type Buffer = HostBuffer;

    fn copy(&self, copy: &CopyRequest<'_, HostBuffer>) -> Result<()> {
        copy.run_on_host();
        Ok(())
    }
}

/// A prepared kernel: it computes the elements of the output from those of `N` inputs.
type Compute<const N: usize> = dyn Fn([&[f32]; N], &mut [f32]) + Send + Sync;
struct Computed<const N: usize>(Box<Compute<N>>);

impl<const N: usize> Launch<Processor> for Computed<N> {
    /// Checks nothing: preparing has (B21). Many threads launch the same kernel.
    fn launch(&self, _queue: &Queue, operands: &mut Operands<'_>) -> Result<()> {
        (self.0)(std::array::from_fn(|i| operands.input(i)), operands.output(0));
        Ok(())
    }
}

/// All operands of a kernel have one element type, f32.
const F32S: &[TypeVar] = &[TypeVar::of(&[F32])];

type Request<'a> = PrepareRequest<'a, Processor>;

/// The shapes of `N` inputs and of the output.
fn shapes<'a, const N: usize>(request: &Request<'a>) -> Result<([&'a [i64]; N], &'a [i64])> {
    let operands = (<[TensorView<'a>; N]>::try_from(&request.inputs[..]), &request.outputs[..]);
    let (Ok(inputs), [output]) = operands else {
        return Err(Error::invalid(format!("expected {N} inputs and 1 output")));
    };
    if inputs.iter().chain([output]).any(|of| of.is_absent() || of.strides().is_some()) {
        return Err(Error::unsupported("expected operands that are given, and dense"));
    }
    Ok((inputs.map(|input| input.shape()), output.shape()))
}

fn relu(request: &Request<'_>) -> Result<Prepared> {
    let ([x], y) = shapes(request)?;
    if x != y {
        return Err(Error::invalid(format!("Relu of {x:?} to {y:?}")));
    }
    // Not `x.max(0.0)`: a NaN stays one.
    let positive = |x: f32| if x < 0.0 { 0.0 } else { x };
    Ok(Prepared::new(Computed(Box::new(move |[x], y| {
        y.iter_mut().zip(x).for_each(|(y, x)| *y = positive(*x));
    }))))
}

fn add(request: &Request<'_>) -> Result<Prepared> {
    let ([a, b], y) = shapes(request)?;
    // One is as the output, the other too, or as its last dimensions: a bias, a scalar.
    if !(y.ends_with(a) && y.ends_with(b) && (a == y || b == y)) {
        return Err(Error::unsupported(format!("Add of {a:?} and {b:?} to {y:?}")));
    }
    Ok(Prepared::new(Computed(Box::new(|[a, b], y| {
        let terms = a.iter().cycle().zip(b.iter().cycle());
        y.iter_mut().zip(terms).for_each(|(y, (a, b))| *y = a + b);
    }))))
}

fn matmul(request: &Request<'_>) -> Result<Prepared> {
    let (k, n) = match shapes(request)? {
        ([&[m, k], &[rows, n]], y) if rows == k && y == [m, n] => (k as usize, n as usize),
        (of, y) => return Err(Error::unsupported(format!("MatMul of {of:?} to {y:?}"))),
    };
    Ok(Prepared::new(Computed(Box::new(move |[a, b], y| {
        for (i, y) in y.iter_mut().enumerate() {
            let (row, column) = (i / n, i % n);
            *y = (0..k).map(|j| a[row * k + j] * b[j * n + column]).sum();
        }
    }))))
}

devbay_plugin_api::export_plugin!(Instance);
