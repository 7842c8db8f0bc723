//! Serialises times as nanoseconds, and levels as numbers from 0 to 63.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(crate::time::clock::nanos(*time))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_nanos)
}

pub(crate) mod level {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use upshift_core::Level;

    pub(crate) fn serialize<S: Serializer>(
        level: &Level,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(level.get())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Level, D::Error> {
        Level::new(u8::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

pub(crate) mod optional_level {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use upshift_core::Level;

    pub(crate) fn serialize<S: Serializer>(
        level: &Option<Level>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        level.map(Level::get).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Level>, D::Error> {
        let level = Option::<u8>::deserialize(deserializer)?;
        level.map(Level::new).transpose().map_err(D::Error::custom)
    }
}
