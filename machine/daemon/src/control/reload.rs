//! Reloads the configuration. A client keeps its connection, the page that it shares with the
//! daemon, and its slots on it, unless the new configuration denies its user.
//!
//! Changes of the following settings apply at once: ceilings and the rules that grant them (users
//! that are now denied are disconnected), the rules `[[assign]]`, limits for new requests, shares,
//! quanta, mode and group of the socket. Changes of the socket's path, the cooperative mode and the
//! metrics endpoint take effect after a restart.

use std::sync::Arc;

use crate::config::Config;
use crate::control::lookup::Answer;
use crate::control::{Connection, Control};
use crate::cpu::Command;
use crate::proc::reader::JobClass;

impl Control {
    pub(super) fn reload(&mut self, mut config: Config) {
        self.notify.reloading();
        let before = self.shared.config();
        let needs_restart = [
            ("socket", config.socket == before.socket),
            ("cooperative", config.cooperative == before.cooperative),
            ("metrics", config.metrics == before.metrics),
        ];
        for (name, _) in needs_restart.iter().filter(|(_, same)| !same) {
            let text = format!(
                "`{name}` has changed, but keeps its old value until the daemon is restarted"
            );
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
            scheduler.send(Command::Configure(Arc::clone(&config)));
        }
        self.apply_ceilings(&config);
        match &self.assigner {
            Some(assigner) => assigner.reconsider(),
            None => self.start_assigning(),
        }
        self.shared
            .log
            .say("the configuration was read again".to_string());
        self.print_remarks();
        self.notify.reloaded();
    }

    fn apply_ceilings(&mut self, config: &Config) {
        let (mut denied, mut sessions) = (Vec::new(), Vec::new());
        for (&key, connection) in &mut self.connections {
            let peer = &connection.peer;
            let ceiling = config.ceiling_of(peer.uid, &peer.groups);
            let trusted =
                config.trust_of(peer.uid, &peer.groups) > crate::admission::Trust::Anybody;
            let (Some(session), Some(ceiling)) = (&mut connection.session, ceiling) else {
                if ceiling.is_none() {
                    denied.push((key, peer.pid, peer.uid));
                }
                continue;
            };
            // Until the assigned level has been looked up, the less urgent of the old and the new
            // ceiling applies.
            session.ceiling = session.ceiling.max(ceiling);
            for vcpu in &session.vcpus {
                if let Some(scheduler) = self.schedulers.get(&vcpu.cpu) {
                    scheduler.send(Command::Ceiling(vcpu.slot, session.ceiling, trusted));
                }
            }
            sessions.push((key, session.number, session.pid));
        }
        for (key, pid, user) in denied {
            self.shared.eject(format!(
                "process {pid} of user {user} is disconnected, because a rule now denies it"
            ));
            self.drop_connection(key);
        }
        self.look_up_levels(sessions);
    }

    /// Looks up the levels that rules assign to these sessions. Each entry contains the key of a
    /// connection, the number of its session, and the pid of its client.
    pub(super) fn look_up_levels(&self, sessions: Vec<(u64, u32, i32)>) {
        let (config, answers) = (self.shared.config(), Arc::clone(&self.answers));
        self.shared.reader.send(JobClass::Own, move || {
            let level = |(key, number, pid)| (key, number, config.assigned_level(pid));
            let levels = sessions.into_iter().map(level).collect();
            answers.put(Answer::Levels(config, levels));
        });
    }

    /// Applies `levels`, which were looked up according to `lookup_config`.
    pub(super) fn apply_levels(
        &mut self,
        lookup_config: &Arc<Config>,
        levels: Vec<(u64, u32, Option<u8>)>,
    ) {
        let config = self.shared.config();
        if !Arc::ptr_eq(lookup_config, &config) {
            // A reply for the current configuration follows.
            return;
        }
        for (key, number, level) in levels {
            let Some(Connection {
                peer,
                session: Some(session),
                ..
            }) = self.connections.get_mut(&key)
            else {
                continue;
            };
            let Some(ceiling) = config.ceiling_of(peer.uid, &peer.groups) else {
                continue;
            };
            if session.number != number {
                continue;
            }
            session.ceiling = ceiling.max(level.unwrap_or(0));
            let trusted =
                config.trust_of(peer.uid, &peer.groups) > crate::admission::Trust::Anybody;
            for vcpu in &session.vcpus {
                if let Some(scheduler) = self.schedulers.get(&vcpu.cpu) {
                    scheduler.send(Command::Ceiling(vcpu.slot, session.ceiling, trusted));
                }
            }
        }
    }
}
