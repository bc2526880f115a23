package storetest

import "github.com/reaper-ttl/reaper/store"

// Meddle gives a record's field another value, of any type, or removes it. Kind
// says which; one in ten leaves it alone.
func Meddle(fields store.Fields, name string, kind uint8, text string, n int64, x float64) {
	switch kind % 10 {
	case 0:
		fields[name] = text
	case 1:
		fields[name] = n
	case 2:
		fields[name] = x
	case 3:
		fields[name] = n%2 == 0
	case 4:
		fields[name] = []store.Fields{{name: text}}
	case 5:
		delete(fields, name)
	case 6:
		fields[name] = nil
	case 7:
		fields[name] = []store.Fields{nil, {}}
	case 8:
		fields[name] = int(n) // of a type that no driver makes
	}
}
