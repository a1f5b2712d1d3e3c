package controller

// TTLAnnotation has an API server of Coxswain delete an object after a while. It is about the object that
// bears it: what a controller makes in that object's likeness does not take it over, for it would end before
// the object where that is renewed.
const TTLAnnotation = "coxswain.dev/ttl"
