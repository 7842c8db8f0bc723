//! The kernel of Upshift, which schedules kernel and user coroutines by the same scheduler.
//!
//! A coroutine has a *level*, its priority: 0 is the most urgent level, 63 the least urgent. A
//! *hart* is a hardware thread of a RISC-V processor.
//!
//! The code follows these principles:
//!
//! 1. *The unit of scheduling is the coroutine.* The kernel uses `upshift-core`, in which each
//!    hart serves a vCPU, that is, a set of ready queues. There are no kernel threads.
//! 2. *User memory is not trusted.* The kernel never follows a user's pointer: it checks the range
//!    against the page table and copies through its own mapping. A bad pointer harms only its
//!    process.
//! 3. *No wake is lost.* Every queue is bounded by memory that is reserved in advance. A wake sets
//!    a bit or links an entry, so no wake is dropped for lack of memory.
//! 4. *`unsafe` is confined to `arch`, `memory` and the virtio drivers in `devices`*, and each
//!    block states its reason. The compiler rejects it elsewhere.
//! 5. *There is one kind of lock.* It masks interrupts, and is never held across an `await`.
//!
//! Locks are taken in this order, from the outside in. A lock that is not listed is never held
//! together with another lock:
//!
//! ```text
//!  table of processes ─► fields of a process (ring ─► threads)
//!    ─► awaited objects (pipes, exit states, shares, console, futex,
//!       socket ─► network ─► its endpoint ─► its waiters, requests of the network, files, disk)
//!    ─► run queue ─► timers of a hart, loaded spaces, page tables
//!      ─► the scheduler's own ─► heap ─► frames
//! ```

#![no_std]
#![no_main]
#![deny(unsafe_code)]

extern crate alloc;

#[allow(unsafe_code)]
mod arch;
mod archive;
mod chaos;
mod clock;
mod command_line;
mod console;
mod device_tree;
mod devices;
mod disk;
mod elf;
mod executor;
mod futex;
mod global;
mod hart;
mod init;
mod interrupts;
mod levels;
mod machine;
#[allow(unsafe_code)]
mod memory;
mod net;
mod pipe;
mod process;
mod run_queue;
#[cfg(feature = "selftest")]
mod selftest;
mod settings;
mod sleep;
mod storage;
mod switching;
mod syscall;
mod timers;
mod times;
mod trace;
mod vdso;
mod waiters;

use arch::{boot, finisher};
use command_line::refuse;
use device_tree::DeviceTree;
use machine::Machine;
use memory::PhysAddr;

/// Maximum number of harts that the kernel uses.
pub(crate) const MAX_HARTS: usize = 8;

/// Boots the machine, on the hart that the firmware has chosen. This hart gets number 0, regardless
/// of its id.
fn boot(hart_id: usize, device_tree: PhysAddr) -> ! {
    let header = memory::boot_bytes(device_tree, device_tree::HEADER);
    let size = header
        .and_then(device_tree::total_size)
        .expect("the firmware passes a device tree");
    let tree = memory::boot_bytes(device_tree, size).and_then(DeviceTree::new);
    let mut machine = tree
        .and_then(Machine::new)
        .expect("a device tree with memory, harts and a clock");
    console::init(&machine);
    if let Some(device) = machine.finisher {
        finisher::set(device);
    }
    machine.check_arguments();
    let alternate = match machine.argument("harts") {
        None => false,
        Some("alternate") => true,
        Some(other) => refuse(format_args!("harts={other}: the only value is alternate")),
    };
    machine.use_harts(hart_id, alternate);
    let sstc = machine.harts.iter().all(|hart| hart.sstc);
    clock::init(machine.timebase, sstc);
    memory::init(&machine, device_tree.get()..device_tree.get() + size);
    println!(
        "upshift: {} harts (booted by {hart_id}), {} MiB, {} ticks/s{}, {} virtio slots",
        machine.harts.len(),
        machine.memory.len() >> 20,
        machine.timebase,
        if sstc { " by stimecmp" } else { " by SBI" },
        machine.virtio.iter().count(),
    );
    executor::init(machine.harts.len());
    if let Some(archive) = &machine.archive
        && let Some(bytes) = memory::boot_bytes(PhysAddr::new(archive.start), archive.len())
    {
        archive::set(bytes);
    }
    if let Some(image) = archive::find(vdso::NAME)
        && let Err(error) = vdso::init(image)
    {
        refuse(format_args!("{error}; build the image again"));
    }
    let records = match machine.argument("trace") {
        Some("trace") => Some(trace::DEFAULT_RECORDS),
        _ => machine.number("trace", usize::MAX),
    };
    if let Some(records) = records
        && trace::init(records, machine.harts.len()).is_err()
    {
        refuse(format_args!(
            "no memory for so many records: ask for fewer than trace={records}"
        ));
    }
    if let Some(seed) = machine.number("chaos", usize::MAX) {
        chaos::set_seed(seed as u64);
    }
    #[cfg(feature = "selftest")]
    if machine.argument("late").is_some() {
        hart::set_late_start();
    }
    start_harts(&machine, hart_id);
    let executor = executor::take();
    devices::init(&machine);
    console::enable_input(&machine);
    net::init(&machine, machine.argument("address"));
    disk::init(&machine);
    storage::init();
    settings::set(&machine);
    process::init().expect("memory to boot");
    begin(&machine);
    executor::run(&executor)
}

/// Starts the other harts. The machine continues without a hart that does not start.
fn start_harts(machine: &Machine, boot_hart: usize) {
    let is_boot_hart = |hart: &&machine::HartInfo| hart.id == boot_hart;
    if let Some(hart) = machine.harts.iter().find(is_boot_hart) {
        hart::at(0).set(hart);
    }
    executor::prepare(0);
    let others = machine.harts.iter().filter(|hart| hart.id != boot_hart);
    for (index, hart) in (1..MAX_HARTS).zip(others) {
        hart::at(index).set(hart);
        executor::prepare(index);
        if let Err(error) = boot::start(hart.id, index) {
            println!(
                "upshift: hart {} does not start: SBI error {}",
                hart.id, error.0
            );
            executor::remove_vcpu(index);
        } else if !hart::wait_online(index) {
            println!("upshift: hart {} is not online", hart.id);
        }
    }
}

/// Runs the kernel on a hart that [`start_harts`] has started.
fn boot_secondary() -> ! {
    memory::install_kernel_table();
    #[cfg(feature = "selftest")]
    hart::wait_if_late();
    executor::run(&executor::take())
}

/// Starts the program or the tests that the command line names.
fn begin(machine: &Machine) {
    #[cfg(feature = "selftest")]
    if let Some(selection) = machine.argument("selftest") {
        let times = machine.number("times", usize::MAX).unwrap_or(1);
        selftest::start(selection, times, machine.argument("icount").is_some());
        return;
    }
    let Some(program) = machine.argument("init") else {
        refuse("nothing to run; name a program with init=PROGRAM");
    };
    let result = init::start(program.into(), machine.argument("with").unwrap_or(""));
    if let Err(error) = result {
        refuse(format_args!("{program} does not start: {error}"));
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    arch::csr::interrupts_off();
    console::print_last(format_args!("upshift: kernel {info}"));
    finisher::exit(101)
}
