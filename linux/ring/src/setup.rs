//! Creates the io_uring instance in the best mode that works, or returns an error with advice to
//! the user if no mode works.

use crate::config::{Config, Mode};
use io_uring::IoUring;
use std::time::Duration;
use std::{error, fmt, fs, io};

/// The reason why a ring could not be built, with advice. It is the source of the [`io::Error`]
/// that [`Ring::new`](crate::Ring::new) returns.
#[derive(Clone, Debug)]
pub struct SetupError {
    errno: i32,
    failure: String,
    advice: &'static str,
}

impl SetupError {
    /// Returns the kernel's error number.
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// Returns advice on the setting to change.
    pub fn advice(&self) -> &'static str {
        self.advice
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = io::Error::from_raw_os_error(self.errno);
        write!(f, "{}: {cause}: {}", self.failure, self.advice)
    }
}

impl error::Error for SetupError {}

/// Returns advice on `errno`. `io_uring_disabled` is the value of the sysctl
/// `kernel.io_uring_disabled`, if it exists.
pub(crate) fn advice(errno: i32, io_uring_disabled: Option<u8>) -> &'static str {
    match (errno, io_uring_disabled) {
        (libc::EPERM, Some(2..)) => {
            "io_uring is switched off on this machine; run `sysctl -w kernel.io_uring_disabled=0` as root"
        }
        (libc::EPERM, Some(1)) => {
            "io_uring is reserved for a group on this machine; add the user to the group named by \
             `sysctl kernel.io_uring_group`, give the process CAP_SYS_ADMIN, or run \
             `sysctl -w kernel.io_uring_disabled=0` as root"
        }
        (libc::EPERM | libc::EACCES, _) => {
            "a seccomp filter or security module forbids io_uring, as the default profile of most containers does; \
             allow io_uring_setup, io_uring_enter and io_uring_register \
             (Docker: `--security-opt seccomp=unconfined` or a profile with these three calls)"
        }
        (libc::ENOSYS, _) => {
            "the kernel has no io_uring, or a sandbox hides it; use Linux 6.0 or newer built with CONFIG_IO_URING \
             (6.1 or newer for full speed), and allow io_uring_setup in the seccomp profile"
        }
        (libc::ENOMEM, _) => {
            "not enough lockable memory; raise RLIMIT_MEMLOCK (`ulimit -l`, systemd: LimitMEMLOCK=), or lower \
             the entries of the ring and its receive buffers"
        }
        (libc::EMFILE, _) => {
            "too many open files in this process; raise RLIMIT_NOFILE (`ulimit -n`, systemd: LimitNOFILE=) \
             or close some"
        }
        (libc::ENFILE, _) => "too many open files on this machine; raise `sysctl fs.file-max`",
        (libc::EINVAL, _) => {
            "the kernel refuses the sizes or is too old; use Linux 6.0 or newer, or smaller values in Config"
        }
        _ => "unexpected; check dmesg and `sysctl kernel.io_uring_disabled`",
    }
}

/// Returns the error for an io_uring without a feature that the driver needs.
pub(crate) fn missing_feature(feature: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        SetupError {
            errno: libc::EOPNOTSUPP,
            failure: format!("this io_uring lacks {feature}"),
            advice: "use Linux 6.0 or newer (6.1 or newer for full speed), or the readiness driver",
        },
    )
}

pub(crate) fn explain(failure: &'static str, error: &io::Error) -> io::Error {
    let Some(errno) = error.raw_os_error() else {
        return io::Error::new(error.kind(), format!("{failure}: {error}"));
    };
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let advice = advice(errno, disabled);
    io::Error::new(
        error.kind(),
        SetupError {
            errno,
            failure: failure.to_owned(),
            advice,
        },
    )
}

/// Returns the error number of an error that [`explain`] or a system call returned.
pub(crate) fn errno_of(error: &io::Error) -> i32 {
    let setup_error = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<SetupError>());
    setup_error
        .map(SetupError::errno)
        .or(error.raw_os_error())
        .unwrap_or(libc::ENOMEM)
}

/// Upper bound of a single wait for memory. Waits are useful because the kernel frees a closed ring
/// asynchronously, and the ring's memory counts against the limit until then. The waits double from
/// 1 ms on, and last 63 ms together.
const MAX_MEMORY_WAIT: Duration = Duration::from_millis(50);

/// Returns the best instance that the kernel grants, from `config.mode` downwards.
pub(crate) fn build(config: &Config) -> io::Result<(IoUring, Mode)> {
    let mut mode = config.mode;
    let mut wait = Duration::from_millis(1);
    loop {
        match build_mode(config, mode) {
            Ok(ring) => {
                let params = ring.params();
                if !params.is_feature_nodrop() || !params.is_feature_ext_arg() {
                    return Err(missing_feature("NODROP or EXT_ARG (Linux 5.11)"));
                }
                return Ok((ring, mode));
            }
            Err(error) => match mode.lower() {
                Some(lower) if error.raw_os_error() == Some(libc::EINVAL) => mode = lower,
                _ if error.raw_os_error() == Some(libc::ENOMEM) && wait < MAX_MEMORY_WAIT => {
                    std::thread::sleep(wait);
                    wait *= 2;
                }
                _ => return Err(explain("cannot set up io_uring", &error)),
            },
        }
    }
}

fn build_mode(config: &Config, mode: Mode) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    // A child of `fork` that uses the ring faults instead of writing to the queues of its parent.
    builder.dontfork().setup_cqsize(config.cq_entries);
    match mode {
        Mode::DeferTaskrun => {
            builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all();
        }
        Mode::CoopTaskrun => {
            builder
                .setup_coop_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all();
        }
        Mode::Plain | Mode::Readiness => {}
    }
    builder.build(config.entries)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_known_failure_carries_advice() {
        let cases = [
            (libc::EPERM, Some(2), "kernel.io_uring_disabled=0"),
            (libc::EPERM, Some(1), "io_uring_group"),
            (libc::EPERM, Some(0), "seccomp"),
            (libc::EPERM, None, "seccomp"),
            (libc::EACCES, None, "security module"),
            (libc::ENOSYS, None, "CONFIG_IO_URING"),
            (libc::ENOMEM, None, "RLIMIT_MEMLOCK"),
            (libc::EMFILE, None, "RLIMIT_NOFILE"),
            (libc::ENFILE, None, "fs.file-max"),
            (libc::EINVAL, None, "Linux 6.0"),
        ];
        for (errno, disabled, part) in cases {
            let text = advice(errno, disabled);
            assert!(text.contains(part), "{errno} {disabled:?}: {text}");
        }
    }

    #[test]
    fn the_error_carries_errno_and_advice() {
        let error = explain(
            "cannot set up io_uring",
            &io::Error::from_raw_os_error(libc::ENOMEM),
        );
        let source = error
            .get_ref()
            .unwrap()
            .downcast_ref::<SetupError>()
            .unwrap();
        assert_eq!(source.errno(), libc::ENOMEM);
        assert!(error.to_string().contains(source.advice()));
        assert_eq!(errno_of(&error), libc::ENOMEM);
        let plain = io::Error::from_raw_os_error(libc::EAGAIN);
        assert_eq!(errno_of(&plain), libc::EAGAIN);
    }
}
