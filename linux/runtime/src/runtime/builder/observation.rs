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
    /// The watchdog was asked for.
    is_wanted: bool,
    warnings: bool,
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
        let is_wanted = view || builder.stall_limit.is_some() || builder.on_stall.is_some();
        let warnings = builder
            .warnings
            .unwrap_or_else(|| std::env::var_os("UPSHIFT_WARNINGS").is_none_or(|set| set != "0"));
        let watch = match (is_wanted, warnings) {
            (true, _) => Some(Watch::new(builder.stall_limit, builder.on_stall.is_some())),
            (false, true) => Some(Watch::by_default()),
            (false, false) => None,
        };
        Ok(Observation {
            watch,
            is_wanted,
            warnings,
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
            match Watchdog::start(shared, &watch, self.on_stall, self.warnings, mask) {
                Ok(watchdog) => runtime.observers.watchdog = Some(watchdog),
                Err(error) if self.is_wanted => return Err(error),
                // A process that may have no further thread works without.
                Err(_) => {}
            }
        }
        if self.warnings {
            shared.domain.host().report_panics();
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
