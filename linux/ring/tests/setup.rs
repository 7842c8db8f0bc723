//! Tests of creating a ring: the choice of driver and mode, and the errors that say why a ring
//! could not be created.
#![cfg(not(loom))]

mod common;
use common::{in_child, is_child, limit_descriptors};
use upshift_ring::{Config, Driver, Mode, Ring, SetupError};

fn forbid_io_uring_setup(errno: i32) {
    forbid(libc::SYS_io_uring_setup, errno);
}

/// Installs a seccomp filter in which the system call `call` fails with `errno`.
fn forbid(call: libc::c_long, errno: i32) {
    let number = call as u32;
    let instruction = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let program = [
        instruction((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0),
        instruction(
            (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            number,
            0,
            1,
        ),
        instruction(
            (libc::BPF_RET | libc::BPF_K) as u16,
            libc::SECCOMP_RET_ERRNO | errno as u32,
            0,
            0,
        ),
        instruction(
            (libc::BPF_RET | libc::BPF_K) as u16,
            libc::SECCOMP_RET_ALLOW,
            0,
            0,
        ),
    ];
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: `program` is a valid filter that outlives the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let filter = libc::SECCOMP_MODE_FILTER;
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, filter, &raw const program),
            0
        );
    }
}

/// Returns the error number and the message with which a ring is refused.
fn refusal(config: Config) -> (i32, String) {
    let error = Ring::new(config).expect_err("the ring was created");
    let setup = error
        .get_ref()
        .unwrap()
        .downcast_ref::<SetupError>()
        .unwrap();
    (setup.errno(), error.to_string())
}

#[test]
fn a_seccomp_filter_with_eperm_is_named() {
    let name = "a_seccomp_filter_with_eperm_is_named";
    if !is_child(name) {
        return in_child(name);
    }
    forbid_io_uring_setup(libc::EPERM);
    let (errno, text) = refusal(common::io_uring_config());
    assert_eq!(errno, libc::EPERM);
    assert!(
        text.contains("seccomp") && text.contains("io_uring_setup"),
        "{text}"
    );
}

#[test]
fn a_kernel_without_io_uring_is_named() {
    let name = "a_kernel_without_io_uring_is_named";
    if !is_child(name) {
        return in_child(name);
    }
    forbid_io_uring_setup(libc::ENOSYS);
    let (errno, text) = refusal(common::io_uring_config());
    assert_eq!(errno, libc::ENOSYS);
    assert!(text.contains("CONFIG_IO_URING"), "{text}");
}

/// If `io_uring_enter` is forbidden, io_uring must count as missing.
#[test]
fn a_filter_that_forbids_only_enter_is_named_and_leads_to_readiness() {
    let name = "a_filter_that_forbids_only_enter_is_named_and_leads_to_readiness";
    if !is_child(name) {
        return in_child(name);
    }
    forbid(libc::SYS_io_uring_enter, libc::EPERM);
    let (errno, text) = refusal(common::io_uring_config());
    assert_eq!(errno, libc::EPERM);
    assert!(text.contains("io_uring_enter"), "{text}");
    let ring = common::ring();
    assert_eq!(ring.mode(), Mode::Readiness);
    common::block_on(&ring, ring.start(upshift_ring::op::Nop::new(), 0)).unwrap();
}

#[test]
fn without_io_uring_readiness_is_used_by_default() {
    let name = "without_io_uring_readiness_is_used_by_default";
    if !is_child(name) {
        return in_child(name);
    }
    forbid_io_uring_setup(libc::EPERM);
    let error = upshift_ring::probe_ring().unwrap_err();
    assert!(error.to_string().contains("seccomp"), "{error}");
    assert_eq!(common::ring().mode(), Mode::Readiness);
}

#[test]
fn the_requested_driver_is_used() {
    let mode_of = |driver| {
        let config = Config {
            driver,
            ..Config::default()
        };
        Ring::new(config).unwrap().mode()
    };
    assert_eq!(mode_of(Driver::Readiness), Mode::Readiness);
    if common::has_io_uring() {
        assert_ne!(mode_of(Driver::Auto), Mode::Readiness);
        assert_ne!(mode_of(Driver::Ring), Mode::Readiness);
    }
}

#[test]
fn too_few_descriptors_are_named() {
    let name = "too_few_descriptors_are_named";
    if !is_child(name) {
        return in_child(name);
    }
    // First only the eventfd can be opened, then no descriptor.
    for extra in [1, 0] {
        let _limit = limit_descriptors(extra);
        let (errno, text) = refusal(Config::default());
        assert_eq!(errno, libc::EMFILE);
        assert!(text.contains("RLIMIT_NOFILE"), "{text}");
    }
}

#[test]
fn every_mode_of_io_uring_works() {
    if !common::has_io_uring() {
        return;
    }
    for mode in [Mode::DeferTaskrun, Mode::CoopTaskrun, Mode::Plain] {
        let ring = Ring::new(Config {
            mode,
            ..common::io_uring_config()
        })
        .unwrap();
        assert!(ring.mode() >= mode && ring.mode() != Mode::Readiness);
        common::block_on(&ring, ring.start(upshift_ring::op::Nop::new(), 0)).unwrap();
    }
}

#[test]
fn values_out_of_range_are_refused_with_the_range() {
    let default = Config::default;
    let configs = [
        Config {
            entries: 0,
            ..default()
        },
        Config {
            entries: 1 << 20,
            ..default()
        },
        Config {
            cq_entries: 1,
            ..default()
        },
        Config {
            buffers: 3,
            ..default()
        },
        Config {
            buffer_size: 0,
            ..default()
        },
        Config {
            recv_window: 0,
            ..default()
        },
        Config {
            max_operations: 0,
            ..default()
        },
    ];
    for config in configs {
        let error = Ring::new(config).expect_err("a value out of range was accepted");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(
            error.to_string().contains(|c: char| c.is_ascii_digit()),
            "{error}"
        );
    }
}

#[test]
fn dropped_rings_leave_no_descriptors_open() {
    let name = "dropped_rings_leave_no_descriptors_open";
    if !is_child(name) {
        return in_child(name);
    }
    drop(common::ring());
    let before = common::open_descriptors();
    for _ in 0..50 {
        let ring = common::ring();
        common::block_on(&ring, ring.start(upshift_ring::op::Nop::new(), 0)).unwrap();
    }
    assert_eq!(common::open_descriptors(), before);
}
