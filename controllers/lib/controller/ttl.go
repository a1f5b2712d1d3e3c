package controller

// TTLAnnotation makes an API server of Coxswain delete the object after this time. Controllers do not copy it
// to dependents, which would expire even if the owner's TTL is renewed.
const TTLAnnotation = "coxswain.dev/ttl"
