//! [`Timeline`]: a recording.

use std::collections::HashMap;
use std::io::{self, Write};

use upshift_core::Change;

use crate::event::{Coroutine, Event, What};
use crate::{chrome, svg};

/// A recording: events of all vCPUs, ordered by time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Timeline {
    /// Of what: a program, a case of the simulator.
    pub name: String,
    /// How many vCPUs there are, also those to which nothing happened.
    pub vcpus: u32,
    /// How long the recording is, ns.
    pub length: u64,
    /// Events that were overwritten by newer ones, or found no place.
    pub lost: u64,
    /// Where coroutines were spawned, `FILE:LINE:COLUMN`: [`Coroutine::site`](crate::Coroutine::site) counts into it.
    pub sites: Vec<String>,
    /// What happened.
    pub events: Vec<Event>,
    #[cfg_attr(feature = "serde", serde(skip))]
    known: HashMap<String, u32>,
}

impl Timeline {
    /// An empty one.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Timeline {
        Timeline {
            name: name.into(),
            ..Timeline::default()
        }
    }

    /// The number of a place where coroutines are spawned. One look-up by hash.
    pub fn site(&mut self, place: &str) -> u32 {
        if let Some(&number) = self.known.get(place) {
            return number;
        }
        let number = self.sites.len() as u32;
        self.sites.push(place.into());
        self.known.insert(place.into(), number);
        number
    }

    /// The name of a place; `?` for a number that stands for none.
    #[must_use]
    pub fn site_name(&self, number: u32) -> &str {
        self.sites.get(number as usize).map_or("?", String::as_str)
    }

    /// Adds an event. Those of one instant stay in the order in which they are added; [`Timeline::sort`] puts the rest in
    /// order.
    pub fn add(&mut self, at: u64, vcpu: u32, what: What) {
        self.vcpus = self.vcpus.max(vcpu.saturating_add(1));
        self.length = self.length.max(at);
        self.events.push(Event { at, vcpu, what });
    }

    /// Adds the step that a host was told of ([`Host::changed`](upshift_core::Host::changed)).
    pub fn change(&mut self, at: u64, change: &Change) {
        let coroutine = Coroutine {
            id: change.id,
            level: change.level,
            site: self.site(&change.location.to_string()),
            by: change.by.map(|by| by as u32),
        };
        self.add(
            at,
            change.vcpu as u32,
            What::Coroutine(change.step, coroutine),
        );
    }

    /// Orders the events by time.
    pub fn sort(&mut self) {
        self.events.sort_by_key(|event| event.at);
    }

    /// Writes it as Chrome trace events.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_chrome(&self, out: impl Write) -> io::Result<()> {
        let mut writer = chrome::Writer::new(out, &self.name, self.vcpus)?;
        for event in &self.events {
            let site = match event.what {
                What::Coroutine(_, coroutine) => self.site_name(coroutine.site),
                _ => "",
            };
            writer.event(event, site)?;
        }
        writer.finish(self.length, self.lost)?;
        Ok(())
    }

    /// Draws it.
    #[must_use]
    pub fn to_svg(&self) -> String {
        svg::draw(self)
    }
}
