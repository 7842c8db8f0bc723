//! Runtimes and handles to them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null;
use std::thread::ThreadId;
use std::time::Duration;

use upshift::{Board, Driver, Handle, Level, Preemption, Runtime};

use crate::error::{catch_panic_code, errno, free};
use crate::task::{Foreign, upshift_task};

/// A runtime. Only the thread that created it may use and free it.
pub struct upshift_runtime {
    runtime: Runtime,
    thread: ThreadId,
}

impl upshift_runtime {
    fn is_on_creating_thread(&self) -> bool {
        std::thread::current().id() == self.thread
    }
}

/// A handle to a runtime. It may be used on any thread, and on several threads at the same time.
pub struct upshift_handle(pub(crate) Handle);

/// Settings of a runtime. `upshift_config_init` sets the defaults, of which single settings can
/// then be changed.
#[repr(C)]
pub struct upshift_config {
    /// Number of vCPUs, or 0 for one per CPU.
    pub vcpus: u32,
    /// Maximum number of threads for blocking functions.
    pub blocking_threads: u32,
    /// Level of the task of `upshift_runtime_block_on`.
    pub main_level: u32,
    /// Preemption of polls: 0 for none, 1 for preemption if the kernel supports it, or 2 if it is
    /// required.
    pub preemption: u32,
    /// Use of the machine's daemon: 0 for none, 1 for the daemon if there is one, or 2 if it is
    /// required.
    pub board: u32,
    /// I/O driver: 1 for io_uring, 2 for epoll with threads for files, or 0 for the value of the
    /// environment variable UPSHIFT_DRIVER or, without that variable, the best driver that works.
    pub driver: u32,
    /// Percentage of each vCPU's time that `floor_level` and the less urgent levels keep, or 0 for
    /// strict priority.
    pub floor_percent: u32,
    /// Most urgent of the levels that share `floor_percent`.
    pub floor_level: u32,
    /// Number of receive buffers per vCPU and receiving level: a power of two, or 0 for the
    /// default. Either both `buffers` and `buffer_size` are 0, or neither is.
    pub buffers: u32,
    /// Size of a receive buffer in bytes, or 0 for the default; see `buffers`.
    pub buffer_size: u32,
    /// Longest time of a poll while a coroutine of equal level waits, in nanoseconds, or 0 for the
    /// default.
    pub quantum_ns: u64,
    /// Time that a vCPU spins before it sleeps, in nanoseconds, or UINT64_MAX for the default.
    pub spin_ns: u64,
    /// Longest time that completions wait while coroutines are ready, in nanoseconds, or 0 for the
    /// default.
    pub reap_interval_ns: u64,
    /// Seed of the test mode that shuffles coroutines of equal level and makes half of all polls
    /// yield, at random, or 0 to turn this mode off.
    pub chaos: u64,
    /// Array of the CPUs to which the vCPUs are pinned, with `pins_len` entries.
    pub pins: *const u32,
    /// Number of entries of `pins`.
    pub pins_len: usize,
    /// Name of the threads, or null for "upshift".
    pub name: *const c_char,
}

/// Sets all settings to their defaults. Does nothing for null. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_config_init(config: *mut upshift_config) {
    let defaults = upshift_config {
        vcpus: 0,
        blocking_threads: 512,
        main_level: u32::from(Level::DEFAULT.get()),
        preemption: 0,
        board: 0,
        driver: 0,
        floor_percent: 0,
        floor_level: u32::from(Level::NORMAL.get()),
        buffers: 0,
        buffer_size: 0,
        quantum_ns: 0,
        spin_ns: u64::MAX,
        reap_interval_ns: 0,
        chaos: 0,
        pins: null(),
        pins_len: 0,
        name: null(),
    };
    if !config.is_null() {
        // SAFETY: `config` is not null, so the caller guarantees that it has room for the settings.
        unsafe { config.write(defaults) };
    }
}

fn level_of(number: u32) -> Result<Level, c_int> {
    let number = u8::try_from(number).map_err(|_| -libc::EINVAL)?;
    Level::new(number).map_err(|_| -libc::EINVAL)
}

/// Builds a runtime with these settings.
///
/// # Safety
/// `pins` is null, or has `pins_len` entries. `name` is null, or a C string.
unsafe fn build(config: &upshift_config) -> Result<Runtime, c_int> {
    let mut builder = Runtime::builder();
    if config.vcpus != 0 {
        builder = builder.vcpus(config.vcpus as usize);
    }
    let level = level_of(config.main_level)?;
    builder = builder
        .blocking_threads(config.blocking_threads as usize)
        .main_level(level)
        .preemption(match config.preemption {
            0 => Preemption::Off,
            1 => Preemption::Preferred,
            2 => Preemption::Required,
            _ => return Err(-libc::EINVAL),
        })
        .board(match config.board {
            0 => Board::Off,
            1 => Board::Auto,
            2 => Board::Required,
            _ => return Err(-libc::EINVAL),
        })
        .driver(match config.driver {
            0 => Driver::Auto,
            1 => Driver::Ring,
            2 => Driver::Readiness,
            _ => return Err(-libc::EINVAL),
        });
    if config.floor_percent != 0 {
        let percent = u8::try_from(config.floor_percent).map_err(|_| -libc::EINVAL)?;
        builder = builder.floor(level_of(config.floor_level)?, percent);
    }
    if config.buffers != 0 || config.buffer_size != 0 {
        if config.buffers == 0 || config.buffer_size == 0 {
            return Err(-libc::EINVAL);
        }
        let count = u16::try_from(config.buffers).map_err(|_| -libc::EINVAL)?;
        builder = builder.buffers(count, config.buffer_size);
    }
    if config.quantum_ns != 0 {
        builder = builder.quantum(Duration::from_nanos(config.quantum_ns));
    }
    if config.spin_ns != u64::MAX {
        builder = builder.spin(Duration::from_nanos(config.spin_ns));
    }
    if config.reap_interval_ns != 0 {
        builder = builder.reap_interval(Duration::from_nanos(config.reap_interval_ns));
    }
    if config.chaos != 0 {
        builder = builder.chaos(config.chaos);
    }
    if config.pins_len != 0 {
        if config.pins.is_null() {
            return Err(-libc::EINVAL);
        }
        // SAFETY: `pins` is not null, so the caller guarantees that it has `pins_len` entries.
        let pins = unsafe { std::slice::from_raw_parts(config.pins, config.pins_len) };
        builder = builder.pin(pins.iter().map(|cpu| *cpu as usize));
    }
    if !config.name.is_null() {
        // SAFETY: `name` is not null, so the caller guarantees that it is a C string.
        let name = unsafe { CStr::from_ptr(config.name) };
        builder = builder.name(name.to_string_lossy());
    }
    builder.build().map_err(|error| {
        // The message names the setting to change, which an errno cannot.
        eprintln!("upshift: {error}");
        errno(&error)
    })
}

/// Creates a runtime with these settings, or with the defaults if `config` is null. Returns 0,
/// -EINVAL if `runtime` is null, or if a setting is invalid or lacks another setting that it
/// depends on, or the negative errno of another failure, the reason of which is printed on standard
/// error. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_runtime_new(
    config: *const upshift_config,
    runtime: *mut *mut upshift_runtime,
) -> c_int {
    if runtime.is_null() {
        return -libc::EINVAL;
    }
    catch_panic_code(|| {
        let mut defaults = std::mem::MaybeUninit::uninit();
        // SAFETY: the caller guarantees that `config` is null or filled as its comments say.
        // `upshift_config_init` initialises `defaults`.
        let result = unsafe {
            let config = config.as_ref().unwrap_or_else(|| {
                upshift_config_init(defaults.as_mut_ptr());
                defaults.assume_init_ref()
            });
            build(config)
        };
        match result {
            Ok(runtime_value) => {
                let new_runtime = Box::into_raw(Box::new(upshift_runtime {
                    runtime: runtime_value,
                    thread: std::thread::current().id(),
                }));
                // SAFETY: `runtime` is not null, so the caller guarantees that it has room for a
                // pointer.
                unsafe { runtime.write(new_runtime) };
                0
            }
            Err(code) => code,
        }
    })
}

/// Runs a task as the main coroutine on the calling thread until it finishes. If the function
/// returns 0, `*data` is the finished task's data, which the caller must destroy. If it returns a
/// negative errno, the task has been dropped and the errno says why: -ECANCELED if the main
/// coroutine was cancelled by its id, -EPERM if another thread created the runtime, -EINVAL if a
/// pointer is null or the task has no poll function, or -ENOTRECOVERABLE if the function is called
/// in a coroutine or if Rust code in the task has panicked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_runtime_block_on(
    runtime: *mut upshift_runtime,
    task: upshift_task,
    data: *mut *mut c_void,
) -> c_int {
    catch_panic_code(|| {
        // SAFETY: the caller guarantees that `runtime` is null or valid, and that the functions of
        // the task accept its data, and gives the task away.
        let (runtime, future) = unsafe { (runtime.as_ref(), Foreign::new(task)) };
        let (Some(runtime), true) = (runtime, future.can_be_polled() && !data.is_null()) else {
            return -libc::EINVAL;
        };
        if !runtime.is_on_creating_thread() {
            return -libc::EPERM;
        }
        let Ok(frame) = runtime.runtime.try_block_on(future) else {
            return -libc::ECANCELED;
        };
        // SAFETY: `data` is not null, so the caller guarantees that it has room for a pointer.
        unsafe { data.write(frame.into_data()) };
        0
    })
}

/// Frees a runtime: cancels every coroutine, waits for the kernel's operations, and ends the
/// threads. Does nothing for null. In a coroutine, or on a thread that did not create the runtime,
/// the function only prints an error on standard error, and the runtime continues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_runtime_free(runtime: *mut upshift_runtime) {
    // SAFETY: the caller guarantees that `runtime` is null or its own runtime.
    let Some(runtime_ref) = (unsafe { runtime.as_ref() }) else {
        return;
    };
    if !runtime_ref.is_on_creating_thread() || upshift::get_cid().is_some() {
        eprintln!(
            "upshift: this runtime continues to run: free it outside of coroutines, on the thread that created it"
        );
        return;
    }
    // SAFETY: the caller guarantees that it owns the runtime and frees it once.
    unsafe { free(runtime) };
}

fn into_raw_handle(handle: Handle) -> *mut upshift_handle {
    Box::into_raw(Box::new(upshift_handle(handle)))
}

/// Creates a handle to a runtime. Returns null if `runtime` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_runtime_handle(
    runtime: *const upshift_runtime,
) -> *mut upshift_handle {
    // SAFETY: the caller guarantees that `runtime` is null or valid.
    unsafe { runtime.as_ref() }.map_or(std::ptr::null_mut(), |runtime| {
        into_raw_handle(runtime.runtime.handle())
    })
}

/// Creates a handle to the runtime of the calling coroutine or blocking function. Returns null
/// outside of both. May be called on any thread.
#[unsafe(no_mangle)]
pub extern "C" fn upshift_handle_current() -> *mut upshift_handle {
    Handle::current().map_or(std::ptr::null_mut(), into_raw_handle)
}

/// Clones a handle. Returns null if `handle` is null. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_handle_clone(
    handle: *const upshift_handle,
) -> *mut upshift_handle {
    // SAFETY: the caller guarantees that `handle` is null or valid.
    unsafe { handle.as_ref() }.map_or(std::ptr::null_mut(), |handle| {
        into_raw_handle(handle.0.clone())
    })
}

/// Frees a handle. Does nothing for null. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_handle_free(handle: *mut upshift_handle) {
    // SAFETY: the caller guarantees that the pointer is null or its own handle, which it frees
    // once.
    unsafe { free(handle) };
}

/// Adds a vCPU to the caller's runtime. Returns the index of the vCPU, or a negative errno, which
/// is -EIO outside of coroutines and blocking functions. May be called on any thread.
#[unsafe(no_mangle)]
pub extern "C" fn upshift_alloc_cpu() -> c_int {
    catch_panic_code(|| {
        upshift::alloc_cpu().map_or_else(|error| errno(&error), |index| index as c_int)
    })
}

/// Releases the vCPU that was added last to the caller's runtime. Returns the index of the vCPU,
/// -EINVAL if no vCPU can be released, or -EIO outside of coroutines and blocking functions. May be
/// called on any thread.
#[unsafe(no_mangle)]
pub extern "C" fn upshift_release_cpu() -> c_int {
    catch_panic_code(|| {
        upshift::release_cpu().map_or_else(|error| errno(&error), |index| index as c_int)
    })
}
