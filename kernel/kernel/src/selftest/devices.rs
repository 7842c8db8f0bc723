//! Tests of device interrupts, of memory for devices, and of the network card, if any.

use alloc::format;
use core::sync::atomic::Ordering::Relaxed;

use super::Outcome;
use crate::devices::Card;
use crate::memory::dma::Dma;
use crate::memory::frames::free_frames;
use crate::sleep::sleep_until;
use crate::{clock, console, devices, ensure, hart, net};

/// The serial port interrupts each hart in turn, including harts whose contexts the firmware has
/// left closed.
pub(super) async fn interrupts_come_to_the_hart_they_are_routed_to() -> Outcome {
    let Some(source) = console::source() else {
        return Err("there is no serial port".into());
    };
    devices::close_all();
    for round in 0..2 {
        for index in 0..hart::online().len() {
            ensure!(devices::route(source, index), "hart {index} has no context");
            // The port interrupts once more when a byte waits for long; the previous hart may have
            // claimed this interrupt, and may be slow on a busy host.
            devices::wait_idle().await;
            console::loop_back(b'x');
            console::readable().await;
            let mut byte = [0];
            let count = console::try_read(&mut byte);
            ensure!(
                count == Some(1) && byte == *b"x",
                "read {count:?} bytes: {byte:?}"
            );
            let hart = console::served_by();
            ensure!(
                hart == index,
                "round {round}: hart {hart} instead of {index}"
            );
        }
    }
    Ok(())
}

pub(super) async fn memory_of_devices_comes_back() -> Outcome {
    let before = free_frames();
    for bytes in [1, 4096, 4097, 5 * 4096] {
        let mut memory = Dma::new(bytes).map_err(|_| format!("no memory for {bytes} bytes"))?;
        let size = bytes.next_power_of_two().max(4096);
        ensure!(
            memory.len() == size,
            "{} bytes allocated for {bytes}",
            memory.len()
        );
        ensure!(
            memory.iter().all(|byte| *byte == 0),
            "the memory is not zeroed"
        );
        memory.fill(7);
        drop(memory);
        ensure!(free_frames() == before, "{bytes} bytes do not come back");
    }
    for bytes in [1, 5 * 4096] {
        let memory = Dma::new(bytes).map_err(|_| format!("no memory for {bytes} bytes"))?;
        let size = memory.len();
        let in_device = memory.lend();
        let address = in_device.address().get();
        ensure!(
            address.is_multiple_of(size),
            "{bytes} bytes at {address:#x}"
        );
    }
    // Memory that a device may still write to is leaked, so that it is not reused: a frame for a
    // byte, and eight frames for five pages.
    let lost = before - free_frames();
    ensure!(lost == 1 + 8, "{lost} frames are lost");
    Ok(())
}

/// Sends ARP requests for the address of QEMU's gateway, more than there are buffers.
pub(super) async fn card_sends_and_receives() -> Outcome {
    const GATEWAY: [u8; 4] = [10, 0, 2, 2];
    const OURS: [u8; 4] = [10, 0, 2, 15];
    // The stack runs without the card meanwhile.
    let Some(mut card) = net::exchange_card(None) else {
        return Ok(());
    };
    let outcome = ask_gateway(&mut card, GATEWAY, OURS).await;
    net::exchange_card(Some(card));
    outcome
}

async fn ask_gateway(card: &mut Card, gateway: [u8; 4], ours: [u8; 4]) -> Outcome {
    let address = card.address();
    let mut frame = [0; 42];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&address);
    frame[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame[22..28].copy_from_slice(&address);
    frame[28..32].copy_from_slice(&ours);
    frame[38..].copy_from_slice(&gateway);
    let before = net::INTERRUPTS.load(Relaxed);
    for round in 0..100 {
        ensure!(card.can_send(), "round {round}: no free send buffer");
        let sent = card.send(frame.len(), |to| to.copy_from_slice(&frame));
        ensure!(sent.is_some(), "round {round}: nothing is sent");
        // The host may be busy.
        let limit = clock::now() + 20 * clock::ticks_per_second();
        loop {
            let Some(received) = card.receive() else {
                ensure!(clock::now() < limit, "round {round}: no answer");
                sleep_until(clock::now() + clock::from_micros(20)).await;
                continue;
            };
            let bytes = received.bytes();
            // An ARP reply from the gateway to this machine.
            let is_answer = bytes.len() >= 42
                && bytes[..6] == address
                && bytes[12..14] == [8, 6]
                && bytes[20..22] == [0, 2]
                && bytes[28..32] == gateway;
            card.give_back(received);
            if is_answer {
                break;
            }
        }
    }
    // The replies were polled, so the interrupted hart may not have run.
    let limit = clock::now() + 20 * clock::ticks_per_second();
    while net::INTERRUPTS.load(Relaxed) == before {
        ensure!(clock::now() < limit, "no interrupt");
        sleep_until(clock::now() + clock::from_micros(1_000)).await;
    }
    Ok(())
}
