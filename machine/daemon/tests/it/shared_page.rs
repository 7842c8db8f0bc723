//! Attacks through the pages that the daemon shares with its clients.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::net::RecvFlags;
use upshift_board::layout::{GLOBAL_BYTES, LOCAL_BYTES};
use upshift_board::os::{self};
use upshift_board::wire::{self, Reason, Role};
use upshift_daemon::Daemon;
use upshift_elevate::current_tid;

use crate::attack::{MALLORY, TRUDY, deadline_after, open_daemon, start_child, uses_at_most};
use crate::child::{cpu_time, number, pin, setting, wait_for_parent};
use crate::client::{Registration, census, connect, processes, register};
use crate::fuzz::parameter;
use crate::process::{Process, Random, elevated_threads, monotonic, wait_until};
use crate::protocol::cooperative;
use crate::scripted_client::start_scripted_client;
use crate::{daemon, permitted, serial_test, socket};

#[test]
fn random_words_on_a_page_harm_only_their_writer() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("garbage");
    let _daemon = daemon("garbage");
    let mut scribbler = start_scripted_client(&path);
    let mut other = start_scripted_client(&path);
    other.execute("level 40");
    scribbler.execute("write-random 300");
    assert_eq!(processes(&path), 2);
    scribbler.execute("leave");
    assert!(elevated_threads(scribbler.pid()).is_empty());
    let mut third = start_scripted_client(&path);
    third.execute("level 2");
    wait_until("the daemon continues", || {
        !elevated_threads(third.pid()).is_empty()
    });
    assert_eq!(other.execute("outranked 40"), "true");
}

#[test]
fn clients_that_write_random_claims_leave_bystanders_their_share() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("scribble");
    let time = Duration::from_millis(parameter("UPSHIFT_DAEMON_SCRIBBLE", 1500));
    let mut scribblers = [
        start_child("scribbler", &path, MALLORY, (0, 40), &[]),
        start_child("scribbler", &path, TRUDY, (0, 40), &[]),
    ];
    let mut bystander = Process::start("gap-meter", &path, &[("CPU", "0".to_string())]);
    bystander.line("ready").unwrap();
    let (began, end) = (monotonic(), deadline_after(time));
    for scribbler in &mut scribblers {
        scribbler.run_until(end);
    }
    bystander.run_until(end);
    while monotonic() < end {
        assert_eq!(processes(&path), 2);
        std::thread::sleep(Duration::from_millis(50));
    }
    let (used, longest) = (bystander.number("used "), bystander.number("longest "));
    let words: Vec<u64> = scribblers
        .iter_mut()
        .map(|process| process.number("wrote "))
        .collect();
    let elapsed_us = (monotonic() - began) / 1000;
    println!("{words:?} words; bystander {used} of {elapsed_us} us, longest gap {longest} us");
    let attacker_us = scribblers
        .iter_mut()
        .map(|process| process.number("used "))
        .sum();
    assert!(uses_at_most(97, attacker_us, elapsed_us));
    // The pauses ensure this share, and not the alarms of the canaries. A canary may be silent now
    // and then if other programs use the remaining time, but at most once in 300 ms.
    let alarms = census(&path)["alarms"].as_u64().unwrap();
    assert!(
        alarms * 300_000 < elapsed_us,
        "{alarms} alarms in {elapsed_us} us"
    );
    for mut scribbler in scribblers {
        scribbler.send("leave");
        wait_until("no thread is elevated", || {
            elevated_threads(scribbler.pid()).is_empty()
        });
        scribbler.kill();
    }
    wait_until("no process is registered", || processes(&path) == 0);
}

/// Writes random words to the first 4 KiB of the page, and rings now and then, until the deadline.
/// Prints the number of words.
pub(crate) fn scribbler() {
    pin(number("CPU") as usize);
    let registration = Registration::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_parent();
    let page = registration.page.address().cast::<u64>();
    let mut random = Random(u64::from(number("USER") as u32) << 7 | 1);
    let (before, mut words) = (cpu_time(), 0u64);
    while monotonic() < deadline {
        for _ in 0..1000 {
            // SAFETY: the mapped page has more than 512 words, which are atomics or unused, and
            // which other processes read as atomics.
            unsafe {
                let word = page.add(random.below(512) as usize);
                AtomicU64::from_ptr(word).store(random.below(u64::MAX), Relaxed);
            }
        }
        words += 1000;
        if random.below(4) == 0 {
            os::ring(&registration.doorbells[0]).unwrap();
        }
    }
    println!("wrote {words}");
    println!("used {}", (cpu_time() - before) / 1000);
    wait_for_parent();
}

#[test]
fn pages_that_could_be_truncated_are_refused_and_sealed_pages_cannot_be_truncated() {
    let _guard = serial_test();
    let path = socket("pages");
    let _daemon = Daemon::start(cooperative("pages")).unwrap();
    let is_refused =
        |page: &OwnedFd| register(&connect(&path), &[0], &[], page).map(drop) == Err(Reason::Page);
    assert!(is_refused(
        &os::memory_file("unsealed", LOCAL_BYTES).unwrap()
    ));
    let short = os::memory_file("short", 100).unwrap();
    rustix::fs::fcntl_add_seals(&short, os::LOCAL_SEALS).unwrap();
    assert!(is_refused(&short));
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(is_refused(&file.into()));
    let holes = os::memory_file("holes", LOCAL_BYTES).unwrap();
    let length_only = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&holes, length_only).unwrap();
    assert!(is_refused(&holes));
    // Files that are not in memory, and huge pages of an empty pool.
    for path in ["/proc", "/dev/zero", "/proc/self/mem"] {
        assert!(is_refused(&std::fs::File::open(path).unwrap().into()));
    }
    assert!(is_refused(&os::doorbell().unwrap()));
    let huge = rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::ALLOW_SEALING;
    if let Ok(huge) = rustix::fs::memfd_create("huge", huge)
        && rustix::fs::ftruncate(&huge, 2 << 20).is_ok()
        && rustix::fs::fcntl_add_seals(&huge, os::LOCAL_SEALS).is_ok()
    {
        assert!(is_refused(&huge));
    }
    let (page, view) = os::local_page().unwrap();
    register(&connect(&path), &[0], &[], &page).unwrap();
    assert!(rustix::fs::ftruncate(&page, 0).is_err());
    assert!(rustix::fs::ftruncate(&page, 2 * LOCAL_BYTES as u64).is_err());
    assert!(rustix::fs::fcntl_add_seals(&page, SealFlags::WRITE).is_err());
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(&page, hole, 0, 4096).is_err());
    // SAFETY: the address is mapped. The call must fail to remove the page.
    let removed = unsafe { libc::madvise(view.address(), 4096, libc::MADV_REMOVE) };
    assert_eq!(removed, -1);
}

#[test]
fn the_global_page_cannot_be_made_writable() {
    let _guard = serial_test();
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
        // SAFETY: the mappings are new, and are never read or written.
        unsafe {
            let null = std::ptr::null_mut();
            assert!(rustix::mm::mmap(null, GLOBAL_BYTES, write, MapFlags::SHARED, fd, 0).is_err());
            let mapping =
                rustix::mm::mmap(null, GLOBAL_BYTES, ProtFlags::READ, MapFlags::SHARED, fd, 0)
                    .unwrap();
            let read_write = MprotectFlags::READ | MprotectFlags::WRITE;
            assert!(rustix::mm::mprotect(mapping, GLOBAL_BYTES, read_write).is_err());
            rustix::mm::munmap(mapping, GLOBAL_BYTES).unwrap();
        }
        assert!(rustix::io::pwrite(fd, b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(fd, 0).is_err());
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(fd, hole, 0, 4096).is_err());
    }
}

/// Adds up to 64 `user.*` attributes of 60 KB to the file. Returns the number of attributes.
fn add_attributes(file: &OwnedFd) -> usize {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let value = vec![b'x'; 60_000];
    let set = |index: &usize| {
        let name = format!("user.upshift{index}");
        rustix::fs::setxattr(&path, name, &value, rustix::fs::XattrFlags::empty()).is_ok()
    };
    (0..64).filter(set).count()
}

/// Registers, requests a census, and adds attributes to its own page and to the received files.
/// Prints the numbers of attributes.
pub(crate) fn attribute_setter() {
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
    let counts: Vec<usize> = files.iter().map(add_attributes).collect();
    println!("received {}", counts.iter().sum::<usize>());
    wait_for_parent();
}

#[test]
fn a_client_cannot_add_attributes_to_files_of_the_daemon() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("attribute-setter");
    let mut attribute_setter = start_child("attribute-setter", &path, MALLORY, (0, 40), &[]);
    println!("{} on a file of its own", attribute_setter.number("own "));
    // Each attribute would use 60 KB of kernel memory until the daemon ends.
    assert_eq!(attribute_setter.number("received "), 0);
    assert_eq!(processes(&path), 1);
}
