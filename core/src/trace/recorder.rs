//! Recorders: where events go while runs go on.
//!
//! Each thread has its own buffer for each recorder. The buffer's lock is uncontended until the recording is taken. A
//! buffer is bounded; events that come when it is full are dropped and counted.

use super::events::{Event, Mark, Recording, SectionInfo, ThreadEvents, TraceSink};
use devbay_plugin_api::locks::lock;
use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Events that a thread keeps, and marks that all plugins together do, unless a recorder is made with another bound: an
/// hour of a model of 300 launches a second, in 50 MB.
pub const EVENTS_MAX: usize = 1 << 20;

/// Number of events that are allocated together, so that a growing buffer is not copied.
const CHUNK: usize = 4096;

/// A recorder of traced runs. Clones share their events.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

struct Shared {
    /// Different for each recorder of the process, also for those that are gone.
    id: u64,
    events_max: usize,
    n_runs: AtomicU32,
    threads: Mutex<Vec<Arc<Thread>>>,
    sections: Mutex<Vec<Arc<SectionInfo>>>,
    marks: Mutex<Marks>,
    /// Events of threads that were ending, and had no place for a buffer any more.
    n_homeless: AtomicU64,
}

#[derive(Default)]
struct Marks {
    list: Vec<(String, Mark)>,
    n_dropped: u64,
}

/// A thread's buffer.
struct Thread {
    name: String,
    events: Mutex<Events>,
}

#[derive(Default)]
struct Events {
    chunks: Vec<Vec<Event>>,
    n: usize,
    n_dropped: u64,
}

thread_local! {
    /// The thread's buffers, by recorder.
    static BUFFERS: RefCell<Vec<(u64, Arc<Thread>)>> = const { RefCell::new(Vec::new()) };
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new(EVENTS_MAX)
    }
}

impl PartialEq for Recorder {
    /// Returns whether both are clones of one.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorder({})", self.shared.id)
    }
}

impl Recorder {
    /// Creates a recorder that keeps so many events of each thread, and as many marks of all plugins together.
    pub fn new(events_max: usize) -> Self {
        static N_RECORDERS: AtomicU64 = AtomicU64::new(0);
        let shared = Shared {
            id: N_RECORDERS.fetch_add(1, Ordering::Relaxed),
            events_max,
            n_runs: AtomicU32::new(0),
            threads: Mutex::default(),
            sections: Mutex::default(),
            marks: Mutex::default(),
            n_homeless: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Takes down plugins' marks, for the services that plugins are given.
    pub fn sink(&self) -> TraceSink {
        let recorder = self.clone();
        Arc::new(move |plugin, mark| {
            let mut marks = lock(&recorder.shared.marks);
            if marks.list.len() < recorder.shared.events_max {
                marks.list.push((plugin.to_owned(), mark));
            } else {
                marks.n_dropped += 1;
            }
        })
    }

    /// Returns the events since the last call. Runs may go on meanwhile; their later events are in the next recording.
    pub fn take(&self) -> Recording {
        let threads: Vec<Arc<Thread>> = lock(&self.shared.threads).clone();
        let threads = threads.iter().map(|thread| {
            let events = std::mem::take(&mut *lock(&thread.events));
            let (name, n_dropped) = (thread.name.clone(), events.n_dropped);
            ThreadEvents { name, events: events.chunks.concat(), n_dropped }
        });
        let threads = threads.collect();
        let marks = std::mem::take(&mut *lock(&self.shared.marks));
        Recording {
            threads,
            sections: lock(&self.shared.sections).clone(),
            marks: marks.list,
            n_marks_dropped: marks.n_dropped + self.shared.n_homeless.swap(0, Ordering::Relaxed),
        }
    }

    /// Returns the number of a run that begins, from 1.
    pub(crate) fn count_run(&self) -> u32 {
        self.shared.n_runs.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the number of a section from now on.
    pub(crate) fn add_section(&self, section: SectionInfo) -> u32 {
        let mut sections = lock(&self.shared.sections);
        sections.push(Arc::new(section));
        sections.len() as u32 - 1
    }

    /// Returns the number of the section that is a single node, made now if there is none.
    pub(crate) fn lone_section(&self, section: SectionInfo) -> u32 {
        let mut sections = lock(&self.shared.sections);
        let same = |known: &Arc<SectionInfo>| {
            known.devices == section.devices
                && matches!((&*known.steps, &*section.steps), ([a], [b]) if a.label == b.label && a.kernel == b.kernel)
        };
        if let Some(at) = sections.iter().position(same) {
            return at as u32;
        }
        sections.push(Arc::new(section));
        sections.len() as u32 - 1
    }

    /// Adds an event of the calling thread. Never panics, and waits for no other thread except one that takes the
    /// recording.
    pub(crate) fn add(&self, event: Event) {
        let added = BUFFERS.try_with(|buffers| {
            let mut buffers = buffers.borrow_mut();
            if let Some((_, thread)) = buffers.iter().find(|(id, _)| *id == self.shared.id) {
                return lock(&thread.events).push(event, self.shared.events_max);
            }
            let thread = self.new_thread();
            // If a recorder is gone, only this thread has its buffer.
            buffers.retain(|(_, thread)| Arc::strong_count(thread) > 1);
            lock(&thread.events).push(event, self.shared.events_max);
            buffers.push((self.shared.id, thread));
        });
        if added.is_err() {
            self.shared.n_homeless.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn new_thread(&self) -> Arc<Thread> {
        let mut threads = lock(&self.shared.threads);
        let name = match std::thread::current().name() {
            Some(name) => name.to_owned(),
            None => format!("thread {}", threads.len() + 1),
        };
        let thread = Arc::new(Thread { name, events: Mutex::default() });
        threads.push(Arc::clone(&thread));
        thread
    }
}

impl Events {
    #[inline]
    fn push(&mut self, event: Event, events_max: usize) {
        if self.n >= events_max {
            self.n_dropped += 1;
            return;
        }
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push(event),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(event);
                self.chunks.push(chunk);
            }
        }
        self.n += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::events::What;
    use super::*;

    fn event(run: u32) -> Event {
        Event { what: What::Run, run, begin_ns: 1, end_ns: 2 }
    }

    #[test]
    fn a_full_buffer_counts_what_it_loses() {
        let recorder = Recorder::new(CHUNK + 10);
        (0..CHUNK as u32 + 13).for_each(|run| recorder.add(event(run)));
        let recording = recorder.take();
        let [thread] = &*recording.threads else { panic!("{:?}", recording.threads.len()) };
        assert_eq!((thread.events.len(), thread.n_dropped), (CHUNK + 10, 3));
        assert!(
            thread.events.iter().enumerate().all(|(i, event)| event.run == i as u32),
            "the first are kept"
        );
        assert_eq!(recording.n_dropped(), 3);
        // There is room again, and no event is given twice.
        recorder.add(event(7));
        let recording = recorder.take();
        assert_eq!((&recording.threads[0].events[..], recording.n_dropped()), (&[event(7)][..], 0));
    }

    #[test]
    fn marks_are_bounded_too() {
        let recorder = Recorder::new(2);
        let sink = recorder.sink();
        (0..5).for_each(|i| sink("p", Mark { begin_ns: i, end_ns: i, ..Mark::default() }));
        let recording = recorder.take();
        assert_eq!((recording.marks.len(), recording.n_marks_dropped), (2, 3));
    }

    #[test]
    fn threads_keep_their_own_events_for_each_recorder() {
        let recorders = [Recorder::new(1000), Recorder::new(1000)];
        std::thread::scope(|scope| {
            for t in 0..4 {
                let recorders = &recorders;
                let thread = std::thread::Builder::new().name(format!("t{t}"));
                let body = move || (0..100).for_each(|i| recorders[i % 2].add(event(t)));
                thread.spawn_scoped(scope, body).unwrap();
            }
        });
        for recorder in &recorders {
            let recording = recorder.take();
            assert_eq!(recording.threads.len(), 4);
            for thread in &recording.threads {
                assert_eq!(thread.events.len(), 50);
                assert!(thread.events.iter().all(|event| thread.name == format!("t{}", event.run)));
            }
        }
        assert!(recorders[0] == recorders[0].clone() && recorders[0] != recorders[1]);
    }

    #[test]
    fn a_recorder_that_is_gone_leaves_no_buffer_behind() {
        (0..10).for_each(|_| Recorder::new(10).add(event(1)));
        let kept = BUFFERS.with(|buffers| buffers.borrow().len());
        assert!(kept <= 2, "{kept} buffers");
    }
}
