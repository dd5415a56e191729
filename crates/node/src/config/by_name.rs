//! Kinds of engines and fabrics, which configuration files give by name.

use std::fmt::Display;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<T: Display, S: Serializer>(kind: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(kind)
}

pub(super) fn deserialize<'de, T: FromStr<Err = String>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}
