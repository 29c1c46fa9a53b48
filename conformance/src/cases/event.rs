//! Points on timelines: when they are reported, to whom, and how often (B12, B16, B24).

mod callback;
mod chain;
mod destroy;
mod reached;
mod values;
mod wait;

pub(super) use callback::{Calls, call_back, count};

use crate::case::Case;

pub(crate) const CASES: &[Case] = &[Case {
    id: "event.not_early",
    rules: &["B9", "B12", "B14"],
    requires: "a point is reached only when all work before it is done; on an inline device, when the call returns",
    needs: &["memory.alloc", "stream.create", "stream.signal"],
    run: reached::not_early,
}];

pub(crate) const ORDER_CASES: &[Case] = &[
    Case {
        id: "event.host_wait",
        rules: &["B12"],
        requires: "`stream_host_wait` returns OK only once the value is reached, and a TIMEOUT changes nothing",
        needs: &["transfer.round_trip"],
        run: reached::host_wait,
    },
    Case {
        id: "event.host_wait.limits",
        rules: &["B12"],
        requires: "a `stream_host_wait` of 0 ns polls without blocking, and one of UINT64_MAX ns has no limit",
        needs: &["event.host_wait"],
        run: reached::host_wait_limits,
    },
    Case {
        id: "event.wait",
        rules: &["B12"],
        requires: "work after `stream_wait` runs only after the other stream's point",
        needs: &["transfer.device"],
        run: wait::wait,
    },
    Case {
        id: "event.unsignalled",
        rules: &["B12", "B16"],
        requires: "waits and callbacks for an unsignalled value are refused with INVALID",
        needs: &["stream.signal"],
        run: values::unsignalled,
    },
    Case {
        id: "event.wait.self",
        rules: &["B12"],
        requires: "a stream may wait for a point of its own, and continues",
        needs: &["event.wait", "event.unsignalled"],
        run: wait::wait_self,
    },
    Case {
        id: "event.wait.destroyed",
        rules: &["B12", "B24"],
        requires: "a stream may be destroyed while another waits for it; the other continues when the work is done",
        needs: &["event.not_early", "event.wait"],
        run: wait::wait_destroyed,
    },
    Case {
        id: "event.callback.once",
        rules: &["B16"],
        requires: "each callback runs exactly once, with OK, even for a value already reached",
        needs: &["stream.signal"],
        run: callback::callback_once,
    },
    Case {
        id: "event.between",
        rules: &["B12", "B16"],
        requires: "0 and values between two signals count as signalled, and are reached with the next signalled value",
        needs: &["event.host_wait", "event.wait", "event.callback.once"],
        run: values::between,
    },
    Case {
        id: "event.callback.not_early",
        rules: &["B12", "B16"],
        requires: "a callback runs only when all work before its point is done",
        needs: &["event.callback.once"],
        run: callback::callback_not_early,
    },
    Case {
        id: "event.callback.unlocked",
        rules: &["B16"],
        requires: "the plugin holds no lock during a callback: its other functions can be called meanwhile",
        needs: &["event.callback.once"],
        run: callback::callback_unlocked,
    },
    Case {
        id: "event.destroy",
        rules: &["B24"],
        requires: "after `stream_destroy` returns, the device touches no memory of the enqueued work",
        needs: &["transfer.round_trip"],
        run: destroy::destroy,
    },
    Case {
        id: "event.destroy.finishes",
        rules: &["B24"],
        requires: "`stream_destroy` finishes all enqueued work, signalled or not, before it returns",
        needs: &["event.destroy"],
        run: destroy::destroy_finishes,
    },
    Case {
        id: "event.callback.destroy",
        rules: &["B16", "B24"],
        requires: "callbacks of a destroyed stream run before `stream_destroy` returns, and none runs after",
        needs: &["event.callback.once", "event.destroy"],
        run: callback::callback_destroy,
    },
];
