package flowcontrol

const (
	// maxSeats is the greatest width of a request, however many objects it lists (kube-apiserver's
	// MaximumListSeatsLimit).
	maxSeats = 10
	// widestShare is the part of a level's seats that a single request may have.
	widestShare = 0.15
	// objectsPerSeat is the number of objects that take a list one seat, as in kube-apiserver.
	objectsPerSeat = 100
)

// WidthOf returns the number of seats that a list of so many objects takes.
func WidthOf(objects int) int { return min((objects+objectsPerSeat-1)/objectsPerSeat, maxSeats) }
