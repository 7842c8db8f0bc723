//! Attacks on the pages that the daemon shares with its clients.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::net::RecvFlags;
use upshift_board::layout::GLOBAL_BYTES;
use upshift_board::os::{self};
use upshift_board::wire::{self, Reason, Role};
use upshift_daemon::Daemon;
use upshift_elevate::current_tid;

use crate::attack::{MALLORY, TRUDY, from_now, open_daemon, start_child, takes_at_most};
use crate::child::{cpu_time, number, pin, setting, wait_for_go};
use crate::client::{Registration, census, connect, processes, register};
use crate::fuzz::drawn;
use crate::process::{Process, Random, elevated_threads, monotonic, until};
use crate::protocol::cooperative;
use crate::puppet::start_puppet;
use crate::{daemon, permitted, socket, turn};

#[test]
fn garbage_on_the_page_harms_only_its_writer() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("garbage");
    let _daemon = daemon("garbage");
    let mut vandal = start_puppet(&path);
    let mut other = start_puppet(&path);
    other.obey("level 40");
    vandal.obey("garbage 300");
    assert_eq!(processes(&path), 2);
    vandal.obey("leave");
    assert!(elevated_threads(vandal.pid()).is_empty());
    let mut third = start_puppet(&path);
    third.obey("level 2");
    until("the daemon continues", || {
        !elevated_threads(third.pid()).is_empty()
    });
    assert_eq!(other.obey("outranked 40"), "true");
}

#[test]
fn pages_of_random_bits_take_no_more_than_the_rules_allow() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("scribble");
    let time = Duration::from_millis(drawn("UPSHIFT_DAEMON_SCRIBBLE", 1500));
    let mut vandals = [
        start_child("scribbler", &path, MALLORY, (0, 40), &[]),
        start_child("scribbler", &path, TRUDY, (0, 40), &[]),
    ];
    let mut bystander = Process::start("gap", &path, &[("CPU", "0".to_string())]);
    bystander.line("ready").unwrap();
    let (began, end) = (monotonic(), from_now(time));
    for vandal in &mut vandals {
        vandal.go_until(end);
    }
    bystander.go_until(end);
    while monotonic() < end {
        assert_eq!(processes(&path), 2);
        std::thread::sleep(Duration::from_millis(50));
    }
    let (used, longest) = (bystander.number("used "), bystander.number("longest "));
    let words: Vec<u64> = vandals
        .iter_mut()
        .map(|process| process.number("wrote "))
        .collect();
    let took = (monotonic() - began) / 1000;
    println!("{words:?} words; bystander {used} of {took} us, longest gap {longest} us");
    let burnt = vandals
        .iter_mut()
        .map(|process| process.number("used "))
        .sum();
    assert!(takes_at_most(97, burnt, took));
    // The rules ensure that, not the canary, which may miss its turn now and then where other
    // programs share the rest.
    let alarms = census(&path)["alarms"].as_u64().unwrap();
    assert!(alarms * 300_000 < took, "{alarms} alarms in {took} us");
    for mut vandal in vandals {
        vandal.say("leave");
        until("nobody is elevated", || {
            elevated_threads(vandal.pid()).is_empty()
        });
        vandal.kill();
    }
    until("nobody is registered", || processes(&path) == 0);
}

/// Writes random bits over the whole page, and rings now and then, until the deadline; prints the
/// number of words.
pub(crate) fn scribbler() {
    pin(number("CPU") as usize);
    let registration = Registration::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_go();
    let page = registration.page.address().cast::<u64>();
    let mut random = Random(u64::from(number("USER") as u32) << 7 | 1);
    let (before, mut words) = (cpu_time(), 0u64);
    while monotonic() < deadline {
        for _ in 0..1000 {
            // SAFETY: 512 words of a live page, all of them atomics or unused, which other
            // processes read as atomics.
            unsafe {
                let word = page.add(random.below(512) as usize);
                AtomicU64::from_ptr(word).store(random.below(u64::MAX), Relaxed);
            }
        }
        words += 1000;
        if random.below(4) == 0 {
            os::ring(&registration.bells[0]).unwrap();
        }
    }
    println!("wrote {words}");
    println!("used {}", (cpu_time() - before) / 1000);
    wait_for_go();
}

#[test]
fn pages_that_could_be_truncated_are_refused_and_sealed_ones_cannot_be() {
    let _turn = turn();
    let path = socket("pages");
    let _daemon = Daemon::start(cooperative("pages")).unwrap();
    let refused =
        |page: &OwnedFd| register(&connect(&path), &[0], &[], page).map(drop) == Err(Reason::Page);
    assert!(refused(&os::memory_file("unsealed", 4096).unwrap()));
    let short = os::memory_file("short", 100).unwrap();
    rustix::fs::fcntl_add_seals(&short, os::LOCAL_SEALS).unwrap();
    assert!(refused(&short));
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(refused(&file.into()));
    let holes = os::memory_file("holes", 4096).unwrap();
    let length_only = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&holes, length_only).unwrap();
    assert!(refused(&holes));
    // Files that are no memory, or memory without pages: huge pages of an empty pool.
    for path in ["/proc", "/dev/zero", "/proc/self/mem"] {
        assert!(refused(&std::fs::File::open(path).unwrap().into()));
    }
    assert!(refused(&os::doorbell().unwrap()));
    let huge = rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::ALLOW_SEALING;
    if let Ok(huge) = rustix::fs::memfd_create("huge", huge)
        && rustix::fs::ftruncate(&huge, 2 << 20).is_ok()
        && rustix::fs::fcntl_add_seals(&huge, os::LOCAL_SEALS).is_ok()
    {
        assert!(refused(&huge));
    }
    let (page, view) = os::local_page().unwrap();
    register(&connect(&path), &[0], &[], &page).unwrap();
    assert!(rustix::fs::ftruncate(&page, 0).is_err());
    assert!(rustix::fs::ftruncate(&page, 8192).is_err());
    assert!(rustix::fs::fcntl_add_seals(&page, SealFlags::WRITE).is_err());
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(&page, hole, 0, 4096).is_err());
    // SAFETY: the mapping is live; the attempt to take its page away must fail.
    let removed = unsafe { libc::madvise(view.address(), 4096, libc::MADV_REMOVE) };
    assert_eq!(removed, -1);
}

#[test]
fn the_global_page_cannot_be_made_writable() {
    let _turn = turn();
    let path = socket("global");
    let _daemon = Daemon::start(cooperative("global")).unwrap();
    let connection = connect(&path);
    let fds = register(&connection, &[0], &[], &os::local_page().unwrap().0).unwrap();
    let global = &fds[0];
    let reopened = rustix::fs::open(
        format!("/proc/self/fd/{}", global.as_raw_fd()),
        OFlags::RDWR,
        Mode::empty(),
    );
    let write = ProtFlags::READ | ProtFlags::WRITE;
    for fd in std::iter::once(global).chain(&reopened) {
        // SAFETY: fresh mappings that are never read; the attempts must fail.
        unsafe {
            let null = std::ptr::null_mut();
            assert!(rustix::mm::mmap(null, GLOBAL_BYTES, write, MapFlags::SHARED, fd, 0).is_err());
            let shown =
                rustix::mm::mmap(null, GLOBAL_BYTES, ProtFlags::READ, MapFlags::SHARED, fd, 0)
                    .unwrap();
            let raise = MprotectFlags::READ | MprotectFlags::WRITE;
            assert!(rustix::mm::mprotect(shown, GLOBAL_BYTES, raise).is_err());
            rustix::mm::munmap(shown, GLOBAL_BYTES).unwrap();
        }
        assert!(rustix::io::pwrite(fd, b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(fd, 0).is_err());
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(fd, hole, 0, 4096).is_err());
    }
}

/// Adds user.* attributes of 60 KB to the file, up to 64; returns their number.
fn add_attributes(file: &OwnedFd) -> usize {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let value = vec![b'x'; 60_000];
    let set = |index: &usize| {
        let name = format!("user.upshift{index}");
        rustix::fs::setxattr(&path, name, &value, rustix::fs::XattrFlags::empty()).is_ok()
    };
    (0..64).filter(set).count()
}

/// Registers and requests a census, and adds attributes to the received files; prints how many stay
/// on each.
pub(crate) fn hanger() {
    pin(number("CPU") as usize);
    let connection = connect(&PathBuf::from(setting("SOCKET")));
    let (file, _page) = os::local_page().unwrap();
    let mut files = register(&connection, &[number("CPU") as u32], &[], &file).unwrap();
    files.truncate(1);
    let mut message = wire::buffer();
    let length = wire::encode_census(&mut message);
    os::send(connection.as_fd(), &message[..length], &[]).unwrap();
    let mut answer = wire::buffer();
    let (_, census) = os::receive(connection.as_fd(), &mut answer, RecvFlags::empty()).unwrap();
    files.extend(census);
    println!("ready");
    println!("own {}", add_attributes(&file));
    let of_the_daemon: Vec<usize> = files.iter().map(add_attributes).collect();
    println!("hung {}", of_the_daemon.iter().sum::<usize>());
    wait_for_go();
}

#[test]
fn files_of_the_daemon_take_no_attributes() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("hanger");
    let mut hanger = start_child("hanger", &path, MALLORY, (0, 40), &[]);
    println!("{} on a file of its own", hanger.number("own "));
    // The attributes would be 60 KB of kernel memory each, as long as the daemon lives.
    assert_eq!(hanger.number("hung "), 0);
    assert_eq!(processes(&path), 1);
}
