//! Records timelines of what coroutines and vCPUs do, and writes them for viewers; also writes
//! counters in the text format of Prometheus.
//!
//! A vCPU is a worker's run queue and its I/O ring. The Linux runtime, the simulator and the
//! `upshift` command record into one form, a [`Timeline`], which is written in one of two formats:
//!
//! * [`chrome::Writer`]: Chrome trace events, one track per vCPU, which Perfetto
//!   (<https://ui.perfetto.dev>) and `chrome://tracing` open. The events are written as they come,
//!   with constant memory, except for a word per coroutine that was woken and not yet polled;
//! * [`svg::draw`]: one picture of vCPUs, levels, and the states of single coroutines.
//!
//! | module | concern |
//! |---|---|
//! | `event` | the events |
//! | `timeline` | events in order, with the names of spawn sites |
//! | [`spans`] | from events to spans of time in one state |
//! | [`chrome`], [`svg`] | the two formats |
//! | [`prometheus`] | counters, gauges and histograms as text |
//!
//! The crate uses no thread, no clock and no file. Both formats are well-formed for any events.
//!
//! ```
//! use upshift_core::{CoroutineId, Level, Step};
//! use upshift_trace::{Coroutine, Timeline, EventKind};
//!
//! let mut timeline = Timeline::new("example");
//! let coroutine = Coroutine {
//!     id: CoroutineId::from_u64(7),
//!     level: Level::at::<3>(),
//!     site: timeline.site("src/main.rs:10:5"),
//!     by: Some(0),
//! };
//! timeline.add(1_000, 0, EventKind::Coroutine(Step::Polled, coroutine));
//! timeline.add(3_500, 0, EventKind::Coroutine(Step::Exited, coroutine));
//! let mut json = Vec::new();
//! timeline.write_chrome(&mut json)?;
//! assert!(String::from_utf8_lossy(&json).contains(r#""ph":"B""#));
//! assert!(timeline.to_svg().starts_with("<svg"));
//! # Ok::<(), std::io::Error>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub mod chrome;
mod event;
mod markup;
pub mod prometheus;
pub mod spans;
pub mod svg;
mod timeline;

pub use event::{Coroutine, Event, EventKind};
pub use markup::escape;
pub use timeline::Timeline;
