package doctor

// MendLongLife is mendLongLife.
var MendLongLife = mendLongLife
