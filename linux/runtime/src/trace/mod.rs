//! A timeline of the runtime, with the steps of each coroutine and each vCPU, and their times.
//!
//! ```
//! let runtime = upshift::Runtime::builder().vcpus(1).build()?;
//! let trace = runtime.handle().trace();
//! trace.start(10_000)?;
//! runtime.block_on(async {
//!     upshift::spawn(async {}, upshift::Level::at::<3>()).await.unwrap();
//! });
//! trace.stop();
//! let timeline = trace.snapshot();
//! assert!(!timeline.events.is_empty());
//! let mut json = Vec::new();
//! timeline.write_chrome(&mut json)?; // for https://ui.perfetto.dev
//! let picture = timeline.to_svg();
//! # assert!(picture.starts_with("<svg"));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The steps of a coroutine are spawned, ready, polled, yielded, blocked, suspended, resumed,
//! stolen and exited. Each is recorded with level, spawn location, vCPU, and the vCPU whose thread
//! caused the step. The steps of a vCPU are parked and unparked, and completions of I/O when they
//! are reaped.
//!
//! | file | concern |
//! |---|---|
//! | `ring` | a ring of the last records of a vCPU, readable while the vCPU writes |
//! | `recorder` | start and stop; such a ring per vCPU and one for other threads; the timeline |
//!
//! An event costs one load and a branch while no recording is under way, and about 20 ns and 40
//! bytes during a recording.

pub(crate) mod recorder;
mod ring;

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::runtime::shared::Shared;

pub use upshift_core::Step;
pub use upshift_trace::spans::Spans;
pub use upshift_trace::{Coroutine, Event, EventKind, Timeline};

/// The recorder of a runtime, which all handles share. See [the module](self).
///
/// ```
/// let runtime = upshift::Runtime::builder().vcpus(1).build()?;
/// let trace = runtime.handle().trace();
/// trace.start(1_000)?;
/// runtime.block_on(upshift::named("request", async {}));
/// let timeline = trace.snapshot();
/// assert!(trace.is_on() && !timeline.events.is_empty());
/// trace.stop();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Trace {
    shared: Arc<Shared>,
}

impl Trace {
    pub(crate) fn new(shared: &Arc<Shared>) -> Trace {
        Trace {
            shared: shared.clone(),
        }
    }

    /// Begins a recording, which replaces the last one. The recording keeps at least the last
    /// `events` events of each vCPU, and the same number for all other threads together; older
    /// events are overwritten and counted. Each event takes 40 bytes, and the runtime keeps this
    /// memory for the next recording.
    ///
    /// # Errors
    /// `OutOfMemory`; nothing is recorded then.
    ///
    /// ```
    /// let runtime = upshift::Runtime::builder().vcpus(1).build()?;
    /// let trace = runtime.handle().trace();
    /// assert!(!trace.is_on());
    /// trace.start(1_000)?; // The last 1000 events of each vCPU, 40 bytes each.
    /// assert!(trace.is_on());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn start(&self, events: usize) -> io::Result<()> {
        let domain = &self.shared.domain;
        domain.host().recorder().start(domain, events)
    }

    /// Ends the recording, which can be read until the next one begins.
    ///
    /// ```
    /// let runtime = upshift::Runtime::builder().vcpus(1).build()?;
    /// let trace = runtime.handle().trace();
    /// trace.start(1_000)?;
    /// runtime.block_on(async {});
    /// trace.stop();
    /// let recorded = trace.snapshot().events.len();
    /// runtime.block_on(async {}); // This call is not recorded.
    /// assert_eq!(trace.snapshot().events.len(), recorded);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn stop(&self) {
        self.shared.domain.host().recorder().stop();
    }

    /// Returns whether a recording is under way.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.shared.domain.host().recorder().is_on()
    }

    /// Returns the recorded timeline. It begins at the time from which the records of all vCPUs are
    /// complete. Callable at any time, even during the recording, and stops no vCPU.
    ///
    /// ```
    /// use upshift::{Level, Runtime};
    ///
    /// let runtime = Runtime::builder().vcpus(1).build()?;
    /// let trace = runtime.handle().trace();
    /// trace.start(1_000)?;
    /// runtime.block_on(async { upshift::spawn(async {}, Level::at::<3>()).await })?;
    /// let timeline = trace.snapshot();
    /// assert!(timeline.events.windows(2).all(|pair| pair[0].at <= pair[1].at));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Timeline {
        let recorder = self.shared.domain.host().recorder();
        recorder.snapshot(
            &self.shared.settings.name,
            self.shared.domain.vcpus().count(),
            self.shared.domain.host().names(),
        )
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("is_on", &self.is_on())
            .finish()
    }
}
