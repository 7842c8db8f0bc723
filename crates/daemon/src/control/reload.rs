//! Another configuration while the daemon runs: no client loses its connection, its page or its place.
//!
//! What applies at once: ceilings and rules (users that are denied now are disconnected), limits for what comes, `[[assign]]` rules, shares, quanta,
//! mode and group of the socket. What needs another daemon: where it listens, whether it elevates at all, and where metrics are.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::Config;
use crate::control::Control;
use crate::cpu::Command;

/// The configuration that waits to be applied, and the bell that announces it.
#[derive(Debug)]
pub(crate) struct Orders {
    next: Mutex<Option<Config>>,
    pub(super) bell: OwnedFd,
}

impl Orders {
    pub(crate) fn new() -> std::io::Result<Orders> {
        Ok(Orders {
            next: Mutex::default(),
            bell: upshift_board::os::doorbell()?,
        })
    }

    pub(crate) fn put(&self, config: Config) {
        use std::os::fd::AsFd;
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(config);
        // An eventfd that is open and does not block can always be rung.
        let _ = upshift_board::os::ring(self.bell.as_fd());
    }
}

impl Control {
    /// Applies what [`Orders`] hold.
    pub(super) fn reload(&mut self) {
        let mut word = [0u8; 8];
        let _ = rustix::io::read(&self.orders.bell, &mut word);
        let next = self.orders.next.lock();
        let Some(mut config) = next.unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        self.notify.reloading();
        let before = self.shared.config();
        let fixed = [
            ("socket", config.socket == before.socket),
            ("cooperative", config.cooperative == before.cooperative),
            ("metrics", config.metrics == before.metrics),
        ];
        for (name, _) in fixed.iter().filter(|(_, same)| !same) {
            let text = format!("`{name}` has changed: that takes a restart");
            self.shared.log.say(text);
        }
        config.socket.clone_from(&before.socket);
        config.cooperative = before.cooperative;
        config.metrics.clone_from(&before.metrics);
        let config = Arc::new(config);
        self.shared.set_config(Arc::clone(&config));
        if let Err(error) = self.listener.permit(&config) {
            self.shared.log.say(error.to_string());
        }
        self.admission.set_limits(config.limits);
        for scheduler in self.schedulers.values() {
            scheduler.tell(Command::Configure(Arc::clone(&config)));
        }
        self.apply_ceilings(&config);
        match &self.assigner {
            Some(assigner) => assigner.reconsider(),
            None => self.start_assigning(),
        }
        self.shared
            .log
            .say("the configuration was read again".to_string());
        self.notify.reloaded();
    }

    fn apply_ceilings(&mut self, config: &Config) {
        let mut denied = Vec::new();
        for (&key, connection) in &mut self.connections {
            let peer = &connection.peer;
            let ceiling = config.ceiling_of(peer.user, &peer.groups);
            let trusted =
                config.standing_of(peer.user, &peer.groups) > crate::admission::Standing::Anybody;
            let (Some(session), Some(ceiling)) = (&mut connection.session, ceiling) else {
                if ceiling.is_none() {
                    denied.push((key, peer.pid, peer.user));
                }
                continue;
            };
            session.ceiling = ceiling.max(config.assigned_level(session.pid).unwrap_or(0));
            for vcpu in &session.vcpus {
                if let Some(scheduler) = self.schedulers.get(&vcpu.cpu) {
                    scheduler.tell(Command::Ceiling(vcpu.slot, session.ceiling, trusted));
                }
            }
        }
        for (key, pid, user) in denied {
            self.shared.eject(format!(
                "process {pid} of user {user} is disconnected: a rule denies it now"
            ));
            self.drop_connection(key);
        }
    }
}
