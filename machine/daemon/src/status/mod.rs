//! The census, which is a report about the state of the whole machine as JSON. These structures
//! define its fields, and `docs/daemon.md` documents them.
//!
//! The winner of a CPU is computed from the current claims, because the CPU's line of the global
//! page is as old as the last decision of the CPU's scheduler, and a vCPU that is alone on the CPU,
//! or keeps its rank, causes no decision. The census reads memory, and the policy of assigned
//! threads.

pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod notify;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;
use upshift_board::wire::Role;
use upshift_board::{Claim, LEVELS, NO_LEVEL};

use crate::control::{Control, Session};
use crate::ranking::roster::{EVERYWHERE, Owner};

#[derive(Serialize)]
struct Machine {
    /// Version of this format.
    version: u32,
    /// Number that identifies the running daemon.
    generation: u64,
    pid: u32,
    uptime_ms: u64,
    /// Set if the daemon elevates threads; otherwise processes yield voluntarily.
    enforcing: bool,
    /// Levels with runnable work, bit L for level L.
    bitmap: u64,
    registrations: u64,
    refused: u64,
    ejected: u64,
    alarms: u64,
    cpus: Vec<Cpu>,
    processes: Vec<Process>,
    assigned: Vec<Assigned>,
}

/// A process to which a rule of the configuration has assigned a level.
#[derive(Serialize)]
struct Assigned {
    pid: i32,
    uid: u32,
    threads: usize,
    /// Set if the kernel currently has a thread of the process in SCHED_FIFO.
    elevated: bool,
}

#[derive(Serialize)]
struct Cpu {
    cpu: usize,
    bitmap: u64,
    /// Session of the winner.
    winner: Option<u32>,
    level: Option<u8>,
    contenders: u32,
    /// Number of times that the winner has changed since the start.
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
    /// Runnable levels, limited by the ceiling.
    bitmap: u64,
    running: Option<u8>,
    awaited: Option<u8>,
    /// Level by which the vCPU is ranked.
    potential: Option<u8>,
    /// Band of the vCPU; 0 if it is not elevated.
    band: u8,
    winner: bool,
    /// Number of times that the vCPU became the winner.
    wins: u64,
    rings: u64,
    floods: u64,
    overdrafts: u64,
    /// Number of pauses in which a thread of the vCPU was in SCHED_IDLE.
    pauses: u64,
    /// Number of turns of the vCPU's loop, if the process counts them.
    turns: u32,
    threads: Vec<Thread>,
}

#[derive(Serialize)]
struct Thread {
    tid: i32,
    role: &'static str,
}

fn existing_level(level: u8) -> Option<u8> {
    (level < LEVELS).then_some(level)
}

/// Returns the census as text. Reads pages and counters, and makes system calls only for assigned
/// threads.
pub(crate) fn to_json(control: &Control) -> String {
    let shared = &control.shared;
    let page = shared.global.page();
    let views = views(control);
    let mut processes: Vec<Process> = control
        .sessions()
        .map(|(connection, session)| Process {
            session: session.number,
            pid: connection.peer.pid,
            uid: connection.peer.uid,
            command: session.command.clone(),
            ceiling: session.ceiling,
            joined_ms: session.joined.elapsed().as_millis() as u64,
            vcpus: (0..session.vcpus.len())
                .map(|index| vcpu(session, index, &views))
                .collect(),
        })
        .collect();
    processes.sort_by_key(|process| process.session);
    let cpus = views.iter().enumerate().map(|(cpu, view)| Cpu {
        cpu,
        bitmap: view.bitmap,
        winner: view.winner.map(|winner| winner.session),
        level: view.winner.map(|winner| winner.level),
        contenders: view.contenders,
        switches: page.cpu(cpu).map_or(0, |line| line.switches.load(Relaxed)),
    });
    let machine = Machine {
        version: 1,
        generation: page.header().generation.load(Relaxed),
        pid: std::process::id(),
        uptime_ms: control.started.elapsed().as_millis() as u64,
        enforcing: shared.enforcing(),
        bitmap: views.iter().fold(0, |all, view| all | view.bitmap),
        registrations: shared.counts.joined.load(Relaxed),
        refused: shared.counts.refused.load(Relaxed),
        ejected: shared.counts.ejected.load(Relaxed),
        alarms: shared.counts.alarms.load(Relaxed),
        cpus: cpus.collect(),
        processes,
        assigned: assigned(control),
    };
    // Numbers, texts and lists can always be serialized.
    serde_json::to_string(&machine).unwrap_or_default()
}

fn assigned(control: &Control) -> Vec<Assigned> {
    let entries = control
        .shared
        .roster
        .select(|entry| entry.owner.cpu == EVERYWHERE);
    let mut all: BTreeMap<i32, Assigned> = BTreeMap::new();
    for entry in entries {
        let Owner { pid, user, .. } = entry.owner;
        let process = all.entry(pid).or_insert(Assigned {
            pid,
            uid: user,
            threads: 0,
            elevated: false,
        });
        process.threads += 1;
        process.elevated |= entry.is_elevated(control.shared.sys.as_ref());
    }
    all.into_values().collect()
}

#[derive(Debug, Clone, Copy, Default)]
struct View {
    bitmap: u64,
    contenders: u32,
    winner: Option<Winner>,
}

#[derive(Debug, Clone, Copy)]
struct Winner {
    slot: usize,
    session: u32,
    level: u8,
}

fn views(control: &Control) -> Vec<View> {
    let mut views = vec![View::default(); control.shared.cpus];
    let page = control.shared.global.page();
    for (_, session) in control.sessions() {
        for (index, vcpu) in session.vcpus.iter().enumerate() {
            let Some(view) = views.get_mut(vcpu.cpu) else {
                continue;
            };
            let claim = claim(session, index);
            view.bitmap |= claim.levels();
            view.contenders += u32::from(claim.potential() < NO_LEVEL);
            // Of several vCPUs of equal level, the one whose turn it is wins.
            let has_turn = page.cpu(vcpu.cpu).and_then(|line| line.winner()) == Some(vcpu.slot);
            let level = claim.runnable();
            let before = view.winner.map_or(NO_LEVEL, |winner| winner.level);
            if level < before || (level == before && level < NO_LEVEL && has_turn) {
                view.winner = Some(Winner {
                    slot: vcpu.slot,
                    session: session.number,
                    level,
                });
            }
        }
    }
    views
}

fn claim(session: &Session, index: usize) -> Claim {
    let line = session.page.vcpu(index);
    line.map_or_else(Claim::default, |line| line.claim().within(session.ceiling))
}

fn vcpu(session: &Session, index: usize, views: &[View]) -> Vcpu {
    let vcpu = &session.vcpus[index];
    let claim = claim(session, index);
    let turns = session.page.vcpu(index).map_or(0, |line| line.turns());
    let winner = views.get(vcpu.cpu).and_then(|view| view.winner);
    Vcpu {
        index,
        cpu: vcpu.cpu,
        bitmap: claim.bitmap,
        running: existing_level(claim.running),
        awaited: existing_level(claim.awaited),
        potential: existing_level(claim.potential()),
        band: vcpu.counters.band.load(Relaxed),
        winner: winner.is_some_and(|winner| winner.slot == vcpu.slot),
        wins: vcpu.counters.wins.load(Relaxed),
        rings: vcpu.counters.rings.load(Relaxed),
        floods: vcpu.counters.floods.load(Relaxed),
        overdrafts: vcpu.counters.overdrafts.load(Relaxed),
        pauses: vcpu.counters.pauses.load(Relaxed),
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
