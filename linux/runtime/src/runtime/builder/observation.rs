//! The watchdog and the view of a runtime that is being built.

use std::io;
use std::sync::Arc;

use super::Builder;
use crate::affinity;
#[cfg(feature = "observe")]
use crate::notice::notice;
use crate::observe::{OnStall, Watch, Watchdog};
use crate::runtime::Runtime;

/// What is to look on, and where.
pub(super) struct Observation {
    watch: Option<Watch>,
    on_stall: Option<OnStall>,
    #[cfg(feature = "observe")]
    view: bool,
    mask: affinity::Mask,
}

impl Observation {
    /// Before the building thread is pinned.
    pub(super) fn of(builder: &Builder) -> io::Result<Observation> {
        #[cfg(feature = "observe")]
        let view = builder.observe
            || std::env::var_os("UPSHIFT_OBSERVE").is_some_and(|value| value != "0");
        #[cfg(not(feature = "observe"))]
        let view = false;
        let watched = view || builder.stall_limit.is_some() || builder.on_stall.is_some();
        Ok(Observation {
            watch: watched.then(|| Watch::new(builder.stall_limit)),
            on_stall: builder.on_stall.clone(),
            #[cfg(feature = "observe")]
            view,
            mask: affinity::current()?,
        })
    }

    pub(super) fn start(self, runtime: &mut Runtime) -> io::Result<()> {
        let shared = &runtime.shared;
        if let Some(watch) = self.watch {
            let watch = Arc::new(watch);
            shared.domain.host().set_longest(watch.longest.clone());
            let _ = shared.watch.set(watch.clone());
            let mask = self.mask.clone();
            runtime.observers.watchdog =
                Some(Watchdog::start(shared, &watch, self.on_stall, mask)?);
        }
        #[cfg(feature = "observe")]
        if self.view {
            match crate::observe::Server::start(shared, self.mask) {
                Ok(view) => runtime.observers.view = Some(view),
                Err(error) => notice(format_args!("no socket for `upshift top`: {error}")),
            }
        }
        Ok(())
    }
}
