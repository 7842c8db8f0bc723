//! The census: the state of the whole machine as JSON. `docs/daemon.md` documents it; these structures are it.

use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;
use upshift_board::urgency::{LEVELS, clamp, clamp_bitmap};
use upshift_board::wire::Role;

use crate::control::Control;

#[derive(Serialize)]
struct Machine {
    /// Of this document.
    version: u32,
    /// Names this life of the daemon.
    generation: u64,
    pid: u32,
    uptime_ms: u64,
    /// Whether it elevates; else processes give way by themselves.
    enforcing: bool,
    /// Levels with something runnable, bit L for level L.
    bitmap: u64,
    registrations: u64,
    refused: u64,
    ejected: u64,
    cpus: Vec<Cpu>,
    processes: Vec<Process>,
}

#[derive(Serialize)]
struct Cpu {
    cpu: usize,
    bitmap: u64,
    /// Session of the winner.
    winner: Option<u32>,
    level: Option<u8>,
    contenders: u32,
    /// Changes of the winner so far.
    switches: u64,
}

#[derive(Serialize)]
struct Process {
    session: u32,
    pid: i32,
    uid: u32,
    command: String,
    ceiling: u8,
    joined_ms: u64,
    vcpus: Vec<Vcpu>,
}

#[derive(Serialize)]
struct Vcpu {
    index: usize,
    cpu: usize,
    /// After the ceiling.
    bitmap: u64,
    running: Option<u8>,
    awaited: Option<u8>,
    /// By which it is ranked.
    potential: Option<u8>,
    /// 0: not elevated.
    band: u8,
    winner: bool,
    /// How often it became the winner.
    wins: u64,
    rings: u64,
    floods: u64,
    overdrafts: u64,
    breaths: u64,
    /// Turns of its loop, if the process counts them.
    turns: u32,
    threads: Vec<Thread>,
}

#[derive(Serialize)]
struct Thread {
    tid: i32,
    role: &'static str,
}

fn some(level: u8) -> Option<u8> {
    (level < LEVELS).then_some(level)
}

/// The text. Reads pages and counters only.
pub(crate) fn of(control: &Control) -> String {
    let shared = &control.shared;
    let page = shared.global.page();
    let mut processes: Vec<Process> = control
        .sessions()
        .map(|(connection, session)| Process {
            session: session.number,
            pid: connection.peer.pid,
            uid: connection.peer.user,
            command: session.command.clone(),
            ceiling: session.ceiling,
            joined_ms: session.joined.elapsed().as_millis() as u64,
            vcpus: session
                .vcpus
                .iter()
                .enumerate()
                .map(|it| vcpu(session, it))
                .collect(),
        })
        .collect();
    processes.sort_by_key(|process| process.session);
    let owner = |slot: usize| {
        let owns = |session: &&crate::control::Session| {
            (session.slot..session.slot + session.vcpus.len()).contains(&slot)
        };
        control.sessions().map(|(_, session)| session).find(owns)
    };
    let cpus = (0..shared.cpus).filter_map(|cpu| {
        let line = page.cpu(cpu)?;
        Some(Cpu {
            cpu,
            bitmap: line.bitmap.load(Relaxed),
            winner: line.winner().and_then(owner).map(|session| session.number),
            level: some(line.winning_level()),
            contenders: line.contenders.load(Relaxed),
            switches: line.switches.load(Relaxed),
        })
    });
    let machine = Machine {
        version: 1,
        generation: page.header().generation.load(Relaxed),
        pid: std::process::id(),
        uptime_ms: control.started.elapsed().as_millis() as u64,
        enforcing: shared.enforcing(),
        bitmap: page.header().bitmap.load(Relaxed),
        registrations: shared.counts.joined.load(Relaxed),
        refused: shared.counts.refused.load(Relaxed),
        ejected: shared.counts.ejected.load(Relaxed),
        cpus: cpus.collect(),
        processes,
    };
    // Numbers, texts and lists of these cannot fail to be written.
    serde_json::to_string(&machine).unwrap_or_default()
}

fn vcpu(
    session: &crate::control::Session,
    (index, vcpu): (usize, &crate::control::SessionVcpu),
) -> Vcpu {
    let line = session.page.vcpu(index);
    let mut claim = line.map(|line| line.claim()).unwrap_or_default();
    let turns = line.map_or(0, |line| line.turns());
    claim.bitmap = clamp_bitmap(claim.bitmap, session.ceiling);
    claim.running = clamp(claim.running, session.ceiling);
    claim.awaited = clamp(claim.awaited, session.ceiling);
    Vcpu {
        index,
        cpu: vcpu.cpu,
        bitmap: claim.bitmap,
        running: some(claim.running),
        awaited: some(claim.awaited),
        potential: some(claim.potential()),
        band: vcpu.tally.band.load(Relaxed),
        winner: vcpu.tally.winner.load(Relaxed),
        wins: vcpu.tally.wins.load(Relaxed),
        rings: vcpu.tally.rings.load(Relaxed),
        floods: vcpu.tally.floods.load(Relaxed),
        overdrafts: vcpu.tally.overdrafts.load(Relaxed),
        breaths: vcpu.tally.breaths.load(Relaxed),
        turns,
        threads: vcpu
            .threads
            .iter()
            .map(|thread| Thread {
                tid: thread.tid,
                role: match thread.role {
                    Role::Worker => "worker",
                    Role::Dispatcher => "dispatcher",
                },
            })
            .collect(),
    }
}
