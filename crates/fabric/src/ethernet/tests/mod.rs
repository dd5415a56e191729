mod idle;
mod model;
