//! Starts the watchdog, which reports long polls, and the socket for `upshift top` (the view).

use std::io;
use std::sync::Arc;

use super::Builder;
use crate::affinity;
#[cfg(feature = "observe")]
use crate::notice::notice;
use crate::observe::{Monitor, OnStall, Watchdog};
use crate::runtime::Runtime;

/// The settings of the watchdog and the view.
pub(super) struct Observation {
    monitor: Option<Monitor>,
    on_stall: Option<OnStall>,
    /// Set if the user requested the watchdog, or something that needs it.
    is_wanted: bool,
    warnings: bool,
    #[cfg(feature = "observe")]
    view: bool,
    mask: affinity::Mask,
}

impl Observation {
    /// Reads the settings. Called before the building thread is pinned.
    pub(super) fn new(builder: &Builder) -> io::Result<Observation> {
        #[cfg(feature = "observe")]
        let view = builder.observe
            || std::env::var_os("UPSHIFT_OBSERVE").is_some_and(|value| value != "0");
        #[cfg(not(feature = "observe"))]
        let view = false;
        let is_wanted = view || builder.stall_limit.is_some() || builder.on_stall.is_some();
        let warnings = builder.warnings.unwrap_or_else(|| {
            std::env::var_os("UPSHIFT_WARNINGS").is_none_or(|value| value != "0")
        });
        let monitor = match (is_wanted, warnings) {
            (true, _) => Some(Monitor::new(
                builder.stall_limit,
                builder.on_stall.is_some(),
            )),
            (false, true) => Some(Monitor::by_default()),
            (false, false) => None,
        };
        Ok(Observation {
            monitor,
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
        if let Some(monitor) = self.monitor {
            let monitor = Arc::new(monitor);
            shared.domain.host().set_longest(monitor.longest.clone());
            let _ = shared.monitor.set(monitor.clone());
            let mask = self.mask.clone();
            match Watchdog::start(shared, &monitor, self.on_stall, self.warnings, mask) {
                Ok(watchdog) => runtime.observers.watchdog = Some(watchdog),
                Err(error) if self.is_wanted => return Err(error),
                // If the process may start no further thread, the runtime works without the
                // watchdog.
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
