mod idle;
mod loss;
mod model;
mod turns;
