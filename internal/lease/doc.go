// Package lease owns every change that the agent makes to a NIC. A lease gives one device, a queue of a NIC, to one
// pod; while a NIC has a lease the XDP program is attached to it, and while a device has one its NAPI is tuned.
//
// Each change is written to a journal before it is made: one JSON document a NIC and a lease. After a crash [Manager]
// reads them, keeps the leases that were whole, undoes what was half done and puts back what nobody holds any more.
//
// Queues without a lease are not touched: their packets go on to the stack. Rules that steer packets to a leased queue
// would be one more kind of change of a NIC, journalled like a knob and undone when the lease ends.
package lease
