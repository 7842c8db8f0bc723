//! Tests of the protocol's encoding. Any bytes must decode to a message or an error, and a message
//! must decode to the values that were encoded.

use proptest::prelude::*;
use upshift_board::wire::{
    Reason, Reply, Request, Role, Thread, WireError, buffer, encode_census, encode_leave,
    encode_register, encode_update,
};

fn thread() -> impl Strategy<Value = Thread> {
    (1..i32::MAX, 0..3u16, any::<bool>()).prop_map(|(tid, vcpu, dispatcher)| Thread {
        tid,
        vcpu,
        role: if dispatcher {
            Role::Dispatcher
        } else {
            Role::Worker
        },
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Request::decode(&bytes);
        let _ = Reply::decode(&bytes);
    }

    #[test]
    fn any_bytes_after_a_valid_header_are_a_message_or_an_error(
        kind in prop_oneof![0u16..6, 128u16..134, Just(255u16)],
        body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = b"UPBD".to_vec();
        bytes.extend(upshift_board::layout::VERSION.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(body);
        let _ = Request::decode(&bytes);
        let _ = Reply::decode(&bytes);
    }

    #[test]
    fn a_registration_survives_a_round_trip(
        cpus in prop::collection::vec(any::<u32>(), 3..=63),
        threads in prop::collection::vec(thread(), 0..=512),
    ) {
        let mut message = buffer();
        let length = encode_register(&mut message, &cpus, &threads).unwrap();
        let Ok(Request::Register { cpus: decoded_cpus, threads: decoded_threads }) = Request::decode(&message[..length]) else {
            panic!("not a registration");
        };
        prop_assert!(decoded_cpus.iter().eq(cpus));
        prop_assert!(decoded_threads.iter().eq(threads));
    }

    #[test]
    fn a_changed_byte_or_length_yields_a_valid_message_or_an_error(
        threads in prop::collection::vec(thread(), 0..20),
        index in 0..400usize,
        byte in any::<u8>(),
        new_length in 0..400usize,
    ) {
        let mut message = buffer();
        let length = encode_register(&mut message, &[0, 1, 2], &threads).unwrap();
        if index < length {
            message[index] = byte;
        }
        if let Ok(Request::Register { cpus, threads }) = Request::decode(&message[..length]) {
            prop_assert!(cpus.len() <= upshift_board::layout::VCPUS);
            prop_assert!(threads.iter().all(|thread| thread.tid > 0 && usize::from(thread.vcpu) < cpus.len()));
        }
        if new_length != length {
            prop_assert!(Request::decode(&message[..new_length]).is_err() || index < length);
        }
    }

    #[test]
    fn an_update_survives_a_round_trip(
        added in prop::collection::vec(thread(), 0..=100),
        removed in prop::collection::vec(any::<i32>(), 0..=100),
    ) {
        let mut message = buffer();
        let length = encode_update(&mut message, &added, &removed).unwrap();
        let Ok(Request::Update { added: decoded_added, removed: decoded_removed }) = Request::decode(&message[..length]) else {
            panic!("not an update");
        };
        prop_assert!(decoded_added.iter().eq(added));
        prop_assert!(decoded_removed.iter().eq(removed));
    }

    #[test]
    fn replies_survive_a_round_trip(
        generation in any::<u64>(), session in any::<u32>(), slot in any::<u32>(), vcpus in any::<u16>(),
        enforcing in any::<bool>(), text in ".{0,300}",
    ) {
        let mut message = buffer();
        for reply in [
            Reply::Welcome { generation, session, slot, vcpus, enforcing },
            Reply::Done(vcpus),
            Reply::Census { bytes: session },
            Reply::Refused { reason: Reason::Limit, text: &text },
        ] {
            let length = reply.encode(&mut message);
            prop_assert_eq!(Reply::decode(&message[..length]), Ok(reply));
        }
    }
}

#[test]
fn requests_without_a_body_survive_a_round_trip() {
    let mut message = buffer();
    let length = encode_leave(&mut message);
    assert_eq!(Request::decode(&message[..length]), Ok(Request::Leave));
    let length = encode_census(&mut message);
    assert_eq!(Request::decode(&message[..length]), Ok(Request::Census));
    assert_eq!(
        Request::decode(&message[..length + 1]),
        Err(WireError::Body)
    );
}

#[test]
fn the_error_for_another_version_has_the_version_and_the_remedy() {
    let mut message = buffer();
    let length = encode_leave(&mut message);
    message[4] = 9;
    let error = Request::decode(&message[..length]).unwrap_err();
    assert_eq!(error, WireError::Version(9));
    assert!(error.to_string().contains("same release"), "{error}");
}

#[test]
fn too_many_threads_or_vcpus_are_not_encoded() {
    let mut message = buffer();
    let thread = Thread {
        tid: 1,
        vcpu: 0,
        role: Role::Worker,
    };
    assert!(encode_register(&mut message, &[0; upshift_board::layout::VCPUS + 1], &[]).is_none());
    assert!(encode_register(&mut message, &[0], &[thread; 513]).is_none());
    assert!(encode_update(&mut message, &[thread; 500], &[1; 13]).is_none());
}
