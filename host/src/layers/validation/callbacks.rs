//! Callbacks: exactly one for each request, with the right status, and none after the stream's end (B16).
//!
//! The plugin gets a number as the argument, so a second call finds nothing instead of memory that the first one freed.
//! Such a call is not passed to the host, whose argument is gone.

use super::books::*;
use super::streams::signalled;
use super::table::DONE;
use super::threads::{Inside, On, mark};
use super::{Answer, Books, next, next_number};
use devbay_plugin_api::abi::*;
use std::ffi::c_void;

impl Books {
    pub(super) unsafe fn stream_on_reached(
        &self,
        stream: *mut Stream,
        value: u64,
        done: Option<DoneFn>,
        arg: *mut c_void,
    ) -> Answer {
        let entered = self.enter("stream_on_reached", On::Stream(stream.addr()))?;
        self.expect(entered.function(), self.refuse_inline(stream.addr()))?;
        let Some(done) = done else {
            let words = "expected a callback, found NULL".to_owned();
            self.host(entered.function(), Fault { rule: "B16", words })?;
            return Ok(entered.call(|| next!(self, stream_on_reached(stream, value, None, arg))));
        };
        let number = next_number();
        let mut state = self.state();
        let known = state.stream(stream.addr()).map(|book| book.serial);
        let may = state.stream(stream.addr()).and_then(|book| signalled(book, value));
        let book = CallbackBook {
            stream: stream.addr(),
            stream_serial: known.unwrap_or(0),
            value,
            done,
            arg: arg.expose_provenance(),
            state: CallbackState::Awaited,
        };
        if may.is_ok() || !self.stop {
            state.callbacks.insert(number, book);
        }
        drop(state);
        self.expect(entered.function(), may)?;
        let argument = std::ptr::without_provenance_mut(number);
        let status =
            entered.call(|| next!(self, stream_on_reached(stream, value, Some(DONE[self.slot]), argument)));
        if status != DEVBAY_STATUS_OK && self.state().callbacks.remove(&number).is_none() {
            let words = format!("it refused a callback with status {status}, and called");
            self.plugin(entered.function(), Fault { rule: "B16", words });
        }
        Ok(status)
    }

    /// Handles a callback of the plugin.
    pub(super) unsafe fn done(&self, arg: *mut c_void, status: Status) {
        let function = "stream_on_reached";
        let mut state = self.state();
        let Some(callback) = state.callbacks.remove(&arg.addr()) else {
            drop(state);
            self.plugin_broke(function, "B16", "a callback that came before, or that was refused");
            return;
        };
        let stream = state.streams.get(&callback.stream).filter(|book| book.serial == callback.stream_serial);
        let reached = stream.map_or(0, |book| book.floor.max(book.told));
        drop(state);
        self.expect_known(function, status);
        if callback.state == CallbackState::Overdue {
            self.plugin_broke(function, "B16", "a callback after the end of its stream");
        } else if status != DEVBAY_STATUS_OK && reached >= callback.value {
            let value = callback.value;
            let words =
                format!("the callback of {value} came with status {status}, and {reached} was reached");
            self.plugin(function, Fault { rule: "B16", words });
        }
        if stream_is_known(self, &callback) {
            self.reported(callback.stream, callback.value, status);
        }
        let _marked = mark(self.slot, Inside::Callback);
        // SAFETY: the host gave this function with this argument for one call; this is it, as the entry was removed
        // (B16).
        unsafe { (callback.done)(std::ptr::with_exposed_provenance_mut(callback.arg), status) };
    }
}

fn stream_is_known(books: &Books, callback: &CallbackBook) -> bool {
    books.state().streams.get(&callback.stream).is_some_and(|book| book.serial == callback.stream_serial)
}
