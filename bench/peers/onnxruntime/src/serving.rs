//! A session that many threads run at once.
//!
//! The crate has `Session::run` take the session mutably. The library's own `Run` may be called by any number of
//! threads on one session, which is how a server uses it; so it is called as it is.

use anyhow::{Context, Result, ensure};
use npyz::WriterBuilder;
use ort::AsPointer;
use ort::session::Session;
use ort::sys::{OrtSession, OrtValue};
use ort::value::Tensor;
use std::ffi::{CString, c_char};
use std::ptr::null;
use std::sync::Barrier;
use std::time::Instant;

/// A model with its inputs, and the shape of its output.
pub struct Loaded {
    session: Session,
    inputs: Vec<(CString, Tensor<f32>)>,
    output: CString,
    shape: Vec<i64>,
}

impl Loaded {
    /// Runs the model once, to learn the shape of its output.
    ///
    /// # Errors
    /// An error of the library, or a model with several outputs.
    pub fn new(mut session: Session, inputs: Vec<(String, Tensor<f32>)>) -> Result<Self> {
        ensure!(
            session.outputs().len() == 1,
            "the model has {} outputs, expected 1",
            session.outputs().len()
        );
        let output = CString::new(session.outputs()[0].name())?;
        let given: Vec<_> = inputs.iter().map(|(name, value)| (name.as_str(), value)).collect();
        let outputs = session.run(given)?;
        let shape = outputs[0].try_extract_tensor::<f32>()?.0.to_vec();
        drop(outputs);
        let named = |(name, value)| Ok((CString::new(name)?, value));
        let inputs = inputs.into_iter().map(named).collect::<Result<_>>()?;
        Ok(Self { session, inputs, output, shape })
    }

    /// Runs once and writes the output.
    ///
    /// # Errors
    /// An error of the library, or a file that cannot be written.
    pub fn write(&self, path: &str) -> Result<()> {
        let mut caller = Caller::new(self)?;
        caller.run()?;
        let mut archive = npyz::npz::NpzWriter::create(path)?;
        let options = archive.array(self.output.to_str()?, Default::default())?;
        let shape: Vec<u64> = self.shape.iter().map(|&extent| extent.cast_unsigned()).collect();
        let mut writer = options.default_dtype().shape(&shape).begin_nd()?;
        writer.extend(caller.result.try_extract_tensor::<f32>()?.1.iter().copied())?;
        Ok(writer.finish()?)
    }

    /// Runs `n` times from so many threads: nanoseconds of all over `n`, and half and 99 in 100 of what callers waited.
    ///
    /// # Errors
    /// An error of the library.
    pub fn serve(&self, n_callers: usize, n: usize) -> Result<[f64; 3]> {
        let together = Barrier::new(n_callers);
        let call = || -> Result<Vec<(Instant, Instant)>> {
            let caller = Caller::new(self);
            together.wait();
            let mut caller = caller?;
            let mut calls = Vec::with_capacity(n / n_callers);
            for _ in 0..n / n_callers {
                let begin = Instant::now();
                caller.run()?;
                calls.push((begin, Instant::now()));
            }
            Ok(calls)
        };
        let calls = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..n_callers).map(|_| scope.spawn(call)).collect();
            let calls = callers.into_iter().map(|caller| caller.join().expect("a caller does not panic"));
            calls.collect::<Result<Vec<_>>>()
        });
        let calls = calls?.concat();
        let begin = calls.iter().map(|(begin, _)| begin).min().context("fewer runs than callers")?;
        let end = calls.iter().map(|(_, end)| end).max().context("fewer runs than callers")?;
        let nanos = |begin: &Instant, end: &Instant| end.duration_since(*begin).as_nanos() as f64;
        let mut waited: Vec<f64> = calls.iter().map(|(begin, end)| nanos(begin, end)).collect();
        waited.sort_by(f64::total_cmp);
        let at = |percent: usize| waited[(waited.len() * percent / 100).min(waited.len() - 1)];
        Ok([nanos(begin, end) / waited.len() as f64, at(50), at(99)])
    }
}

/// One thread's memory for results, and the arguments of its calls.
struct Caller<'a> {
    loaded: &'a Loaded,
    names: Vec<*const c_char>,
    values: Vec<*const OrtValue>,
    /// Results are written here, run after run.
    result: Tensor<f32>,
}

impl<'a> Caller<'a> {
    fn new(loaded: &'a Loaded) -> Result<Self> {
        let n: i64 = loaded.shape.iter().product();
        Ok(Self {
            names: loaded.inputs.iter().map(|(name, _)| name.as_ptr()).collect(),
            values: loaded.inputs.iter().map(|(_, value)| value.ptr()).collect(),
            result: Tensor::from_array((loaded.shape.clone(), vec![0.0f32; usize::try_from(n)?]))?,
            loaded,
        })
    }

    fn run(&mut self) -> Result<()> {
        let session: *const OrtSession = self.loaded.session.ptr();
        let output = self.loaded.output.as_ptr();
        let mut result: *mut OrtValue = self.result.ptr_mut();
        // SAFETY: `Run` may be called on a session by many threads at once (onnxruntime_c_api.h); names, inputs and
        // session live as long as `loaded`, and the result is this caller's alone, of the type and shape that it had.
        let status = unsafe {
            (ort::api().Run)(
                session.cast_mut(),
                null(),
                self.names.as_ptr(),
                self.values.as_ptr(),
                self.names.len(),
                &output,
                1,
                &mut result,
            )
        };
        // SAFETY: the status is the one that the call just returned, and is given up here.
        Ok(unsafe { ort::Error::result_from_status(status) }?)
    }
}
